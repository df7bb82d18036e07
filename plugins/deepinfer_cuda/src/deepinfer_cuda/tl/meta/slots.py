"""Index rows of attention: which slots of a window, of a table, of a drafter's block a row sees. A block a row."""

import tilelang.language as T

from deepinfer_cuda.jit import kernel

THREADS = 128


@kernel(cases=[{}])
def window_slots():
    """(slot of a window's first token, length) int32 ``[T, 2]``, slots of a ring -> slots ``[T, width]``."""
    total, width = T.dynamic("total, width")

    @T.prim_func
    def window_slots(pairs: T.Tensor((total, 2), "int32"), ring: T.int32, out: T.Tensor((total, width), "int32")):
        with T.Kernel(total, threads=THREADS) as t:
            tx = T.get_thread_binding()
            start = pairs[t, 0]
            inside = start % ring
            for turn in T.serial(T.ceildiv(width, THREADS)):
                k = turn * THREADS + tx
                if k < width:
                    out[t, k] = T.if_then_else(k < pairs[t, 1], start - inside + (inside + k) % ring, -1)

    return window_slots


@kernel(cases=[{}])
def window_rows():
    """(a, n_a, b, n_b) int32 ``[T, 4]`` -> a .. a + n_a - 1, b .. b + n_b - 1, then -1: ``[T, width]``."""
    total, width = T.dynamic("total, width")

    @T.prim_func
    def window_rows(pivots: T.Tensor((total, 4), "int32"), out: T.Tensor((total, width), "int32")):
        with T.Kernel(total, threads=THREADS) as t:
            tx = T.get_thread_binding()
            first = pivots[t, 1]
            for turn in T.serial(T.ceildiv(width, THREADS)):
                k = turn * THREADS + tx
                if k < width:
                    row = T.if_then_else(k < first, pivots[t, 0] + k, pivots[t, 2] + (k - first))
                    out[t, k] = T.if_then_else(k < first + pivots[t, 3], row, -1)

    return window_rows


@kernel(cases=[{}])
def joined_rows():
    """``[window | compressed + offset]``, -1 kept: int32 ``[T, W]`` and ``[T, k]`` -> ``[T, W + k]``."""
    total, window_width, compressed_width, width = T.dynamic("total, window_width, compressed_width, width")

    @T.prim_func
    def joined_rows(
        window: T.Tensor((total, window_width), "int32"),
        compressed: T.Tensor((total, compressed_width), "int32"),
        offset: T.int32,
        out: T.Tensor((total, width), "int32"),
    ):
        with T.Kernel(total, threads=THREADS) as t:
            tx = T.get_thread_binding()
            for turn in T.serial(T.ceildiv(width, THREADS)):
                k = turn * THREADS + tx
                if k < window_width:
                    out[t, k] = window[t, k]
                elif k < width:
                    row = compressed[t, k - window_width]
                    out[t, k] = T.if_then_else(row < 0, row, row + offset)

    return joined_rows


@kernel(cases=[{"bounded": False}, {"bounded": True}])
def table_slots(*, bounded: bool):
    """Entries int32 ``[T, k]`` through block tables ``[T, MB]`` -> slots; negative ones, and with ``bounded`` those at
    or past int32 ``[T]``, give -1. Without it any tensor of that shape will do."""
    total, width, blocks = T.dynamic("total, width, blocks")

    @T.prim_func
    def table_slots(
        entries: T.Tensor((total, width), "int32"),
        tables: T.Tensor((total, blocks), "int32"),
        context: T.Tensor((total,), "int32"),
        per_block: T.int32,
        out: T.Tensor((total, width), "int32"),
    ):
        with T.Kernel(total, threads=THREADS) as t:
            tx = T.get_thread_binding()
            for turn in T.serial(T.ceildiv(width, THREADS)):
                k = turn * THREADS + tx
                if k < width:
                    entry = entries[t, k]
                    known = T.And(entry >= 0, entry < context[t]) if bounded else entry >= 0
                    safe = T.max(entry, 0)
                    page = T.min(safe // per_block, blocks - 1)
                    slot = tables[t, page] * per_block + safe % per_block
                    out[t, k] = T.if_then_else(known, slot, -1)

    return table_slots


@kernel(cases=[{"block": 5}])
def draft_rows(*, block: int, sampled_type: str = "int32"):
    """Rows of a block drafter. Arguments: tokens behind the last known position ``[N]``, that position and the slot of
    the ring int32 ``[N]``, slots of a ring, the id of noise, ids of the vocabulary, out ids, positions and slots of the
    rows int32 ``[N * block]``, slots of the window ``[N * block, window]`` and of the block ``[N * block, block]``.
    """
    requests, rows, width = T.dynamic("requests, rows, width")

    @T.prim_func
    def draft_rows(
        sampled: T.Tensor((requests,), sampled_type),
        last: T.Tensor((requests,), "int32"),
        slot: T.Tensor((requests,), "int32"),
        ring: T.int32,
        noise: T.int32,
        vocab: T.int32,
        ids: T.Tensor((rows,), "int32"),
        positions: T.Tensor((rows,), "int32"),
        slots: T.Tensor((rows,), "int32"),
        window: T.Tensor((rows, width), "int32"),
        own: T.Tensor((rows, block), "int32"),
    ):
        with T.Kernel(rows, threads=THREADS) as row:
            tx = T.get_thread_binding()
            i = row // block
            step = row % block
            first = T.max(last[i] - width + 1, 0)
            if tx == 0:
                token = T.cast(sampled[i], "int64")
                usable = T.And(step == 0, T.And(token >= 0, token < T.cast(vocab, "int64")))
                ids[row] = T.if_then_else(usable, T.cast(token, "int32"), noise)
                positions[row] = last[i] + 1 + step
                slots[row] = slot[i] * block + step
            if tx < block:
                own[row, tx] = slot[i] * block + tx
            for turn in T.serial(T.ceildiv(width, THREADS)):
                k = turn * THREADS + tx
                if k < width:
                    at = first + k
                    window[row, k] = T.if_then_else(at <= last[i], slot[i] * ring + at % ring, -1)

    return draft_rows
