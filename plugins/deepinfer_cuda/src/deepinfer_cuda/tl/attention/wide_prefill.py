"""Prefill attention at head width 512: keys are rows of a bf16 buffer, fetched with asynchronous copies.

A block does many rows of one group of heads. Its third warpgroup gathers the tiles that the two others read
(``consumers.py``), and the queries of the next row as soon as the last scores of a row are done: the end of a row, its
rescaling and stores, is hidden behind the fetches of the next one.
"""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.tl.attention.consumers import consumers
from deepinfer_cuda.tl.attention.places import COLUMNS, in_buffer
from deepinfer_cuda.tl.attention.queries import query_copies
from deepinfer_cuda.tl.attention.softmax import TILE
from deepinfer_cuda.tl.attention.workspace import HALF, WARPGROUP, workspace

CONSUMER_REGISTERS, PRODUCER_REGISTERS = 216, 72


def wide_prefill(heads: Any, rows: Any, keys_count: Any, k: Any, *, halves: bool) -> Any:
    """A macro: what one of ``blocks`` blocks does, which share the rows of a group of heads.

    :param halves: Halves of a tile are released one by one.
    """
    left, right = consumers(heads, persistent=True)
    locate, bring_half = in_buffer(threads=128), query_copies(heads)

    @T.macro
    def bring(kv, places, base, lane, row_of_16, k, which, side):
        """Half ``side`` of a tile: eight neighbouring lanes fetch 128 bytes of a key at a time."""
        for part in T.unroll(4):
            at = T.alloc_var("int32")
            source = T.alloc_var("int32")
            at = places[base + part * 16 + row_of_16]
            source = T.max(at, 0)
            for block in T.unroll(4):
                T.call_extern(
                    "handle", "di::copy16_async",
                    T.address_of(k[which, side, part * 16 + row_of_16, block * 64 + lane * 8]),
                    T.address_of(kv[source, side * HALF + block * 64 + lane * 8]), at,
                )  # fmt: skip

    @T.macro
    def bring_tile(w, which, phase, kv, base, lane, row_of_16):
        T.barrier_wait(w.empty[2 * which], phase)
        if not halves:
            T.barrier_wait(w.empty[2 * which + 1], phase)
        bring(kv, w.places, base, lane, row_of_16, w.k, which, 0)
        T.cp_async_barrier_noinc(w.full[2 * which])
        if halves:
            T.barrier_wait(w.empty[2 * which + 1], phase)
        bring(kv, w.places, base, lane, row_of_16, w.k, which, 1)
        T.cp_async_barrier_noinc(w.full[2 * which + 1])

    @T.macro
    def attend(block, group, blocks, q, kv, indices, lengths, sink, out, lse, has_lengths, has_sink, scale):
        w = workspace(table="int32", rows=2, queries_from=WARPGROUP)
        located = T.alloc_barrier(WARPGROUP)

        tx = T.get_thread_binding()
        tiles = T.ceildiv(k, TILE)
        head0 = group * TILE
        turns = T.truncdiv(rows - block + blocks - 1, blocks)
        if tx < WARPGROUP:
            T.set_max_nreg(CONSUMER_REGISTERS, 1)
            for turn in T.serial(turns):
                row, table = block + turn * blocks, (turn & 1) * COLUMNS
                T.barrier_wait(located, turn & 1)
                left(w, turn, 0, row, head0, w.places, table, tiles, scale, sink, has_sink, out, lse)
        elif tx < 2 * WARPGROUP:
            T.set_max_nreg(CONSUMER_REGISTERS, 1)
            for turn in T.serial(turns):
                row, table = block + turn * blocks, (turn & 1) * COLUMNS
                T.barrier_wait(located, turn & 1)
                right(w, turn, 0, row, head0, w.places, table, tiles, scale, sink, has_sink, out, lse)
        else:
            T.set_max_nreg(PRODUCER_REGISTERS, 0)
            lane, row_of_16 = tx % 8, (tx - 2 * WARPGROUP) // 8
            for turn in T.serial(turns):
                row, table = block + turn * blocks, (turn & 1) * COLUMNS
                # overwrites the table of the row before the last one, whose tiles are all released
                locate(tx - 2 * WARPGROUP, row, tiles, w.places, table, indices, k, keys_count, lengths, has_lengths)
                T.sync_threads(8, WARPGROUP)
                # first the queries of the row before: a table told two rows early would be told twice before anyone
                # waited for it, and a barrier tells even from odd and nothing else
                T.barrier_wait(w.q_free, (turn + 1) & 1)
                T.barrier_arrive(located)
                bring_half(q, row, head0, tx - 2 * WARPGROUP, 0, w.ql)
                bring_half(q, row, head0, tx - 2 * WARPGROUP, 1, w.qr)
                T.cp_async_barrier_noinc(w.q_ready)
                pairs = T.ceildiv(tiles, 2)
                for j in T.serial(pairs):
                    key = table + j * 2 * TILE
                    bring_tile(w, 0, (turn * pairs + j + 1) & 1, kv, key, lane, row_of_16)
                    if j * 2 + 1 < tiles:
                        bring_tile(w, 1, (turn * (tiles // 2) + j + 1) & 1, kv, key + TILE, lane, row_of_16)

    return attend
