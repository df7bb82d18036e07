"""Which request a row of a step belongs to: rows of requests follow each other, and only the device knows how many."""

import tilelang.language as T

from deepinfer_cuda.tl.parts.block_sums import WARP, block_prefix

THREADS = 128
SUM_WORDS = 2 * WARP
"""Shared int32 words that :func:`find_requests` needs for its sums."""


@T.macro
def find_requests(seqlens_q, owner, place, ends, sums, told, requests, row0, tx, rows: int, tell: bool):
    """``owner[r]``, ``place[r]`` of the block's ``rows`` rows from ``row0``: their request, -1 where there is none, and
    their number in it. With ``tell``, the first block writes ``ends``: rows up to and with each request."""
    lane, warp = tx % WARP, tx // WARP
    done = T.alloc_var("int32")
    done = 0
    for r in T.serial(T.ceildiv(rows, THREADS)):
        if r * THREADS + tx < rows:
            owner[r * THREADS + tx] = -1
            place[r * THREADS + tx] = 0
    T.sync_threads()
    for turn in T.serial(T.ceildiv(requests, THREADS)):
        i = turn * THREADS + tx
        own = T.alloc_var("int32")
        own = T.if_then_else(i < requests, seqlens_q[T.min(i, requests - 1)], 0)
        block_prefix(own, sums, turn % 2, lane, warp, THREADS // WARP, told)
        first = done + told[0]
        if tell and row0 == 0 and i < requests:
            ends[i] = first + own
        begin = T.max(row0 - first, 0)
        for r in T.serial(T.max(T.min(own, row0 + rows - first) - begin, 0)):
            owner[first + begin + r - row0] = i
            place[first + begin + r - row0] = begin + r
        done += told[1]
    T.sync_threads()
