"""Sort (token, choice) pairs by expert, and cut each expert's rows into tiles, without the host knowing a count.

One block an expert reads all ids: how many are lower than its own is where its rows begin, and a ballot in each warp
gives the rank of each of its pairs. Nothing depends on the order in which blocks run.

Tiles lie in slots. Expert e with rows ``[begin, end)`` owns slots ``[e + begin // tile, e + 1 + end // tile)``:
enough for its tiles, and next to those of its neighbours. A slot that is not needed has 0 rows.

Few pairs are sorted by one block. It knows how many tiles the experts before have, so its slots have no gaps: with one
token that is 6 instead of 384, and a slot that is not needed still costs a block of each product.
"""

from importlib.resources import files
from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel

WARPS = 8
FEW = 512
"""Pairs that one block sorts."""


def slots(pairs: int, experts: int, tile: int) -> int:
    """Slots for tiles of ``tile`` rows, however the pairs are spread."""
    return experts + pairs // tile


def slots_of_few(pairs: int, experts: int, tile: int) -> int:
    """The same where they have no gaps: no tile is without a pair."""
    return min(pairs, slots(pairs, experts, tile))


@kernel(
    cases=[{"experts": e, "tile": t} for e, t in ((384, 8), (384, 16), (384, 32), (384, 96), (8, 8), (8, 16), (8, 32))]
)
def sort_pairs(*, experts: int, tile: int) -> Any:
    """ids int64 ``[P]`` (-1 masked), weights fp32 ``[P]`` -> see the tensors. Rows behind the last one have pair -1
    and weight 0."""
    pairs, count = T.dynamic("pairs"), T.dynamic("slots")
    threads = 32 * WARPS

    @T.prim_func
    def sort_pairs(
        ids: T.Tensor((pairs,), "int64"),
        weights: T.Tensor((pairs,), "float32"),
        row_of: T.Tensor((pairs,), "int32"),
        pair_of: T.Tensor((pairs,), "int32"),
        sorted_weights: T.Tensor((pairs,), "float32"),
        ends: T.Tensor((experts,), "int32"),
        tile_expert: T.Tensor((count,), "int32"),
        tile_begin: T.Tensor((count,), "int32"),
        tile_rows: T.Tensor((count,), "int32"),
    ):
        with T.Kernel(experts, threads=threads) as expert:
            mine = T.alloc_shared((WARPS,), "int32")
            lower = T.alloc_shared((WARPS,), "int32")
            tx = T.get_thread_binding()
            warp, lane = tx // 32, tx % 32
            section = T.ceildiv(pairs, threads) * 32
            equal = T.alloc_var("int32", init=0)
            below = T.alloc_var("int32", init=0)
            for i in T.serial(section // 32):
                p = warp * section + i * 32 + lane
                known = T.alloc_var("int32", init=-1)
                if p < pairs:
                    known = T.cast(ids[p], "int32")
                equal += T.cast(T.popcount(T.cast(T.ballot(known == expert), "uint32")), "int32")
                below += T.cast(T.popcount(T.cast(T.ballot((known >= 0) & (known < expert)), "uint32")), "int32")
            if lane == 0:
                mine[warp] = equal
                lower[warp] = below
            T.sync_threads()
            begin = T.alloc_var("int32", init=0)
            total = T.alloc_var("int32", init=0)
            row = T.alloc_var("int32", init=0)
            for w in T.unroll(WARPS):
                begin += lower[w]
                total += mine[w]
                if w < warp:
                    row += mine[w]
            row += begin
            for i in T.serial(section // 32):
                p = warp * section + i * 32 + lane
                known = T.alloc_var("int32", init=-1)
                if p < pairs:
                    known = T.cast(ids[p], "int32")
                chosen = T.cast(T.ballot(known == expert), "uint32")
                if known == expert:
                    place = row + T.cast(
                        T.popcount(chosen & ((T.uint32(1) << T.cast(lane, "uint32")) - T.uint32(1))), "int32"
                    )
                    row_of[p] = place
                    pair_of[place] = p
                    sorted_weights[place] = weights[p]
                row += T.cast(T.popcount(chosen), "int32")
                if (expert == 0) & (p < pairs) & ((known < 0) | (known >= experts)):
                    row_of[p] = -1
            end = begin + total
            first = expert + begin // tile
            last = T.if_then_else(expert == experts - 1, count, expert + 1 + end // tile)
            for j in T.serial(T.ceildiv(last - first, threads)):
                s = j * threads + tx
                if first + s < last:
                    tile_expert[first + s] = expert
                    tile_begin[first + s] = begin + s * tile
                    tile_rows[first + s] = T.max(0, T.min(tile, total - s * tile))
            if tx == 0:
                ends[expert] = end
            if expert == experts - 1:
                for j in T.serial(T.ceildiv(pairs - end, threads)):
                    surplus = end + j * threads + tx
                    if surplus < pairs:
                        pair_of[surplus] = -1
                        sorted_weights[surplus] = 0.0

    return sort_pairs


@kernel(cases=[{"experts": e, "tile": t} for e, t in ((384, 8), (8, 8), (8, 16), (8, 32))])
def sort_few_pairs(*, experts: int, tile: int) -> Any:
    """As :func:`sort_pairs` for at most ``FEW`` pairs, without gaps between the slots."""
    pairs, count = T.dynamic("pairs"), T.dynamic("slots")

    @T.prim_func
    def sort_few_pairs(
        ids: T.Tensor((pairs,), "int64"),
        weights: T.Tensor((pairs,), "float32"),
        row_of: T.Tensor((pairs,), "int32"),
        pair_of: T.Tensor((pairs,), "int32"),
        sorted_weights: T.Tensor((pairs,), "float32"),
        ends: T.Tensor((experts,), "int32"),
        tile_expert: T.Tensor((count,), "int32"),
        tile_begin: T.Tensor((count,), "int32"),
        tile_rows: T.Tensor((count,), "int32"),
    ):
        with T.Kernel(1, threads=FEW, prelude=_FEW) as _:
            shared = T.alloc_shared(((FEW // 32 + 1) * experts + FEW // 32,), "int32")
            T.call_extern(
                "handle", f"di_sort_few<{experts}, {tile}, {FEW}>", T.address_of(ids[0]), T.address_of(weights[0]),
                T.address_of(row_of[0]), T.address_of(pair_of[0]), T.address_of(sorted_weights[0]),
                T.address_of(ends[0]), T.address_of(tile_expert[0]), T.address_of(tile_begin[0]),
                T.address_of(tile_rows[0]), pairs, count, T.address_of(shared[0]),
            )  # fmt: skip

    return sort_few_pairs


_FEW = files(__package__).joinpath("few.cuh").read_text(encoding="utf-8")
