"""The fields of a decode step's rows from those of its requests (``spec/kernels.md`` 2.5), in one launch.

All fields are slices of one buffer of int32, in the order of :func:`layout`, and the rows' block tables a second one.
"""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.meta.requests import SUM_WORDS, THREADS, find_requests
from deepinfer_cuda.tl.parts.block_sums import WARP

ROWS = 8
"""Rows a block of threads, so that few rows spread over many blocks while they copy their tables."""
NOBODY = 998244353
"""Query index of a row that belongs to no request."""


def layout(sparse: tuple[int, ...], dense: tuple[int, ...], windowed: bool) -> dict[tuple[str, int], tuple[int, int]]:
    """(field, ratio or 0) -> (first column of ``[*, T]``, columns: 2 for pairs that lie side by side)."""
    fields = [("positions", 0, 1), ("query_indices", 0, 1), ("context_lens", 0, 1)]
    fields += [("state_slot_idx", 0, 1), ("swa_slot_idx", 0, 1)]
    if windowed:
        fields += [("slot_swa", 0, 1), ("swa_offset_len", 0, 2)]
    for ratio in sorted({*sparse, *dense}):
        fields += [("positions_c", ratio, 1), ("slot_main", ratio, 1)]
        fields += [("klen", ratio, 1)] if ratio in sparse else []
        fields += [("ca_offset_len", ratio, 2)] if ratio in dense else []
    places, column = {}, 0
    for name, ratio, wide in fields:
        places[name, ratio] = (column, wide)
        column += wide
    return places


def columns(places: dict[Any, tuple[int, int]]) -> int:
    """Words a row of all fields of a layout."""
    return sum(wide for _, wide in places.values())


@kernel(
    cases=[
        {"sparse": (2, 1), "dense": (), "windowed": True},
        {"sparse": (1, 2), "dense": (2, 4), "windowed": True},
        {"sparse": (), "dense": (), "windowed": False},
    ]
)
def decode_rows(*, sparse: tuple[int, ...], dense: tuple[int, ...], windowed: bool):
    """Arguments: rows of each request int32 ``[N]``, lengths with them, block tables ``[N, MB]``, compressor slots and
    window slots ``[N]``, whether a row is real uint8 ``[T]``, tokens of a block, of the window and of its ring, out
    int32 ``[N]`` rows up to and with each request, the fields ``[columns * T]``, block tables of rows ``[T, MB]``.
    """
    requests, total, blocks, words = T.dynamic("requests, total, blocks, words")
    places = layout(sparse, dense, windowed)
    ratios = sorted({*sparse, *dense})

    @T.prim_func
    def decode_rows(
        seqlens_q: T.Tensor((requests,), "int32"),
        seqlens_k: T.Tensor((requests,), "int32"),
        tables: T.Tensor((requests, blocks), "int32"),
        state_slot: T.Tensor((requests,), "int32"),
        swa_slot: T.Tensor((requests,), "int32"),
        valid: T.Tensor((total,), "uint8"),
        block_size: T.int32,
        window: T.int32,
        ring: T.int32,
        ends: T.Tensor((requests,), "int32"),
        fields: T.Tensor((words,), "int32"),
        row_tables: T.Tensor((total, blocks), "int32"),
    ):
        with T.Kernel(T.ceildiv(total, ROWS), threads=THREADS) as block:
            tx = T.get_thread_binding()
            owner = T.alloc_shared((ROWS,), "int32")
            place = T.alloc_shared((ROWS,), "int32")
            sums = T.alloc_shared((SUM_WORDS,), "int32")
            told = T.alloc_local((2,), "int32")
            row0 = block * ROWS
            find_requests(seqlens_q, owner, place, ends, sums, told, requests, row0, tx, ROWS, True)

            if tx < ROWS and row0 + tx < total:
                t = row0 + tx
                i = T.max(owner[tx], 0)
                real = T.And(valid[t] != T.uint8(0), owner[tx] >= 0)
                position = T.max(seqlens_k[i] - seqlens_q[i] + place[tx], 0)
                context = position + 1
                fields[places["positions", 0][0] * total + t] = position
                fields[places["query_indices", 0][0] * total + t] = T.if_then_else(real, i, NOBODY)
                fields[places["context_lens", 0][0] * total + t] = context
                fields[places["state_slot_idx", 0][0] * total + t] = state_slot[i]
                fields[places["swa_slot_idx", 0][0] * total + t] = swa_slot[i]
                if windowed:
                    length = T.min(context, window)
                    base = swa_slot[i] * ring
                    at = places["swa_offset_len", 0][0] * total + 2 * t
                    fields[at] = base + (context - length) % ring
                    fields[at + 1] = length
                    fields[places["slot_swa", 0][0] * total + t] = T.if_then_else(real, base + position % ring, -1)
                for ratio in ratios:
                    per_block = block_size // ratio
                    entry = position // ratio
                    done = T.And(context % ratio == 0, real)
                    page = T.min(entry // per_block, blocks - 1)
                    slot = tables[i, page] * per_block + entry % per_block
                    visible = context // ratio
                    fields[places["positions_c", ratio][0] * total + t] = T.if_then_else(done, entry * ratio, 0)
                    fields[places["slot_main", ratio][0] * total + t] = T.if_then_else(done, slot, -1)
                    if ratio in sparse:
                        fields[places["klen", ratio][0] * total + t] = visible
                    if ratio in dense:
                        pair = places["ca_offset_len", ratio][0] * total + 2 * t
                        fields[pair] = t * (blocks * per_block)
                        fields[pair + 1] = visible

            for turn in T.unroll(ROWS // (THREADS // WARP)):  # a warp copies the table of a row
                r = turn * (THREADS // WARP) + tx // WARP
                if row0 + r < total:
                    for c in T.serial(T.ceildiv(blocks, WARP)):
                        column = c * WARP + tx % WARP
                        if column < blocks:
                            row_tables[row0 + r, column] = tables[T.max(owner[r], 0), column]

    return decode_rows
