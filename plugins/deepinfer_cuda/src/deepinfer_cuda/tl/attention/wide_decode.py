"""Decode attention at head width 512: keys straight from the caches' bytes, expanded by a warpgroup of their own.

The third warpgroup reads entries into registers, 32 at a time and one load ahead, expands them to bf16 and stores them
to the tile that the two others read (``consumers.py``). A row belongs to one block, or to a pair of them that share its
tiles half and half. The cut depends on the number of columns alone, never on the batch.
"""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.tl.attention.consumers import consumers
from deepinfer_cuda.tl.attention.places import COLUMNS, in_caches
from deepinfer_cuda.tl.attention.queries import query_copies
from deepinfer_cuda.tl.attention.softmax import TILE
from deepinfer_cuda.tl.attention.workspace import WARPGROUP, workspace

CONSUMER_REGISTERS, PRODUCER_REGISTERS = 200, 104
"""Two warpgroups of the first and one of the second have what 384 threads start with, 168 each."""
_ENTRY = {"v41": "di::V41", "v41_fp4": "di::V41Fp4"}


def wide_decode(
    heads: Any, k1: Any, k2: Any, *, window_format: str, extra_format: str, segments: int, sizes: Any
) -> Any:
    """A macro: what the ``segments`` blocks of a row do.

    :param sizes: bytes of an entry of each cache, for ``in_caches``.
    """
    left, right = consumers(heads, segments)
    locate, bring_half = in_caches(threads=384, **sizes), query_copies(heads)
    first, other = _ENTRY[window_format], _ENTRY[extra_format or window_format]

    @T.macro
    def load_scales(scales, window, extra, second, at):
        T.call_extern(
            "handle", f"di::load_scales<{first}, {other}>", T.address_of(scales[0]), T.address_of(window[0]),
            T.address_of(extra[0]), second, at,
        )  # fmt: skip

    @T.macro
    def load_codes(formats, codes, share, second, at, block):
        T.call_extern("handle", f"di::load_codes<{formats}>", T.address_of(codes[0]), share, second, at, block)

    @T.macro
    def expand(fmt, plain, formats, w, tile, key, lane, codes, scales, values, next_share, next_second, next_at):
        """The entry in registers to the tile; each of its pieces is replaced by one of the next entry."""
        for block in T.unroll(8):
            T.call_extern(
                "handle", f"di::decode_codes<{_ENTRY[fmt]}, {plain}>", T.address_of(codes[0]), T.address_of(scales[0]),
                block, lane, T.address_of(values[0]),
            )  # fmt: skip
            load_codes(formats, codes, next_share, next_second, next_at, block)
            for h in T.unroll(2):
                for v in T.vectorized(8):
                    w.k[tile & 1, block // 4, key, block % 4 * 64 + lane * 16 + h * 8 + v] = values[h * 8 + v]

    @T.macro
    def expand_any(fmt, formats, codes, scales, to):
        if fmt == "v41":
            plain = T.call_extern("int32", "di::are_plain<di::V41>", T.address_of(codes[0]), T.address_of(scales[0]))
            if plain != 0:
                expand(fmt, "true", formats, *to)
            else:
                expand(fmt, "false", formats, *to)
        else:
            expand(fmt, "true", formats, *to)

    @T.macro
    def attend(
        block, row, q, window, idx, lengths, extra, extra_idx, extra_lengths, sink, out, lse, window_page,
        window_stride, extra_page, extra_stride, has_lengths, has_extra_lengths, has_sink, scale,
    ):  # fmt: skip
        w = workspace(table="int64", rows=1, queries_from=2 * WARPGROUP)
        absent = T.alloc_shared((COLUMNS,), "int32")
        T.pdl_sync()  # a kernel of clusters is launched before the one ahead of it is done, always
        tx = T.get_thread_binding()
        rank = block % segments
        head0 = block // segments * TILE
        window_tiles = T.ceildiv(k1, TILE)
        all_tiles = window_tiles + T.ceildiv(k2, TILE)
        first_tile = rank * T.ceildiv(all_tiles, segments)
        tiles = T.max(0, T.min(T.ceildiv(all_tiles, segments), all_tiles - first_tile))
        split = window_tiles - first_tile
        if tx < WARPGROUP:
            bring_half(q, row, head0, tx, 0, w.ql)
            T.cp_async_barrier_noinc(w.q_ready)
        elif tx < 2 * WARPGROUP:
            bring_half(q, row, head0, tx - WARPGROUP, 1, w.qr)
            T.cp_async_barrier_noinc(w.q_ready)
        locate(
            tx, row, first_tile, tiles, split, w.places, absent, idx, k1, lengths, has_lengths, window_page,
            window_stride, extra_idx, k2, extra_lengths, has_extra_lengths, extra_page, extra_stride,
            window, extra,
        )  # fmt: skip
        T.sync_threads()
        if tx < WARPGROUP:
            T.set_max_nreg(CONSUMER_REGISTERS, 1)
            left(w, 0, rank, row, head0, absent, 0, tiles, scale, sink, has_sink, out, lse)
        elif tx < 2 * WARPGROUP:
            T.set_max_nreg(CONSUMER_REGISTERS, 1)
            right(w, 0, rank, row, head0, absent, 0, tiles, scale, sink, has_sink, out, lse)
        else:
            T.set_max_nreg(PRODUCER_REGISTERS, 0)
            codes = T.alloc_local((32,), "uint32")
            scales = T.alloc_local((8,), "uint32")
            next_scales = T.alloc_local((8,), "uint32")
            values = T.alloc_local((16,), "bfloat16")
            at = T.alloc_var("int64", init=T.int64(-1))
            lane = tx % 4
            mine = (tx - 2 * WARPGROUP) // 4
            second = T.alloc_var("int32", init=0)
            share = T.alloc_var("int64", init=T.int64(0))
            if tiles > 0:
                at = w.places[mine]
            second = T.if_then_else(split <= 0, 1, 0)
            share = T.call_extern(
                "int64", f"di::share<{first}, {other}>", T.address_of(window[0]), T.address_of(extra[0]), second,
                at, lane,
            )  # fmt: skip
            T.clear(codes)
            load_scales(scales, window, extra, second, at)
            for block in T.unroll(8):
                load_codes(f"{first}, {other}", codes, share, second, at, block)
            for part in T.serial(tiles * 2):
                tile = part // 2
                next_tile = (part + 1) // 2
                at = T.int64(-1)
                if next_tile < tiles:
                    at = w.places[(part + 1) * 32 + mine]
                second = T.if_then_else(next_tile >= split, 1, 0)
                share = T.call_extern(
                    "int64", f"di::share<{first}, {other}>", T.address_of(window[0]), T.address_of(extra[0]),
                    second, at, lane,
                )  # fmt: skip
                load_scales(next_scales, window, extra, second, at)
                if part % 2 == 0:
                    T.barrier_wait(w.empty[(tile & 1) * 2], (tile // 2 + 1) & 1)
                    T.barrier_wait(w.empty[(tile & 1) * 2 + 1], (tile // 2 + 1) & 1)
                to = (w, tile, part % 2 * 32 + mine, lane, codes, scales, values, share, second, at)
                if extra_format and tile >= split:
                    expand_any(extra_format, f"{other}, {other}", codes, scales, to)  # nothing of the window follows
                else:
                    expand_any(window_format, f"{first}, {other}", codes, scales, to)
                for i in T.unroll(8):
                    scales[i] = next_scales[i]
                if part % 2 == 1:
                    T.fence_proxy_async()
                    T.barrier_arrive(w.full[(tile & 1) * 2])
                    T.barrier_arrive(w.full[(tile & 1) * 2 + 1])
            if segments == 2:
                T.cluster_arrive()
                T.cluster_wait()
                T.cluster_arrive()
                T.cluster_wait()

    return attend
