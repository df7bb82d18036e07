"""Shared memory of a block of the wide kernels: queries, two tiles of keys, and what its warpgroups tell each other.

About 226 KB of the 227 KB that a block may have: 64 for the queries, 128 for two tiles, 16 for probabilities.
"""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.tl.attention.places import COLUMNS
from deepinfer_cuda.tl.attention.softmax import TILE

WIDTH, HALF = 512, 256
WARPGROUP = 128


class Workspace:
    """Buffers and barriers, made inside a kernel.

    ``k``: two tiles of keys, each in two halves of its columns. ``full``, ``empty``: half ``side`` of tile ``which``
    has come, or may be overwritten, at ``2 * which + side``. ``p_ready``: probabilities and maximum of a tile are
    there. ``q_ready``, ``q_free``: the same for the queries. Index 0 belongs to even tiles, 1 to odd ones.

    :param table: dtype of ``places``, -1 where there is no key.
    :param rows: Rows of tables that are alive at once.
    :param queries_from: Threads that bring the queries.
    """

    def __init__(self, *, table: str, rows: int, queries_from: int) -> None:
        self.ql, self.qr = (T.alloc_shared((TILE, HALF), "bfloat16") for _ in range(2))
        self.k = T.alloc_shared((2, 2, TILE, HALF), "bfloat16")
        self.p = [T.alloc_shared((TILE, TILE), "bfloat16") for _ in range(2)]
        self.m = [T.alloc_shared((TILE,), "float32") for _ in range(2)]
        self.sums = [T.alloc_shared((rows * TILE,), "float32") for _ in range(2)]
        self.places = T.alloc_shared((rows * COLUMNS,), table)
        self.full = T.alloc_barrier([WARPGROUP] * 4)
        self.empty = T.alloc_barrier([WARPGROUP] * 4)
        self.p_ready = [T.alloc_barrier(WARPGROUP) for _ in range(2)]
        self.sums_ready = T.alloc_barrier(2 * WARPGROUP)
        self.q_ready = T.alloc_barrier(queries_from)
        self.q_free = T.alloc_barrier(2 * WARPGROUP)


def workspace(*, table: str, rows: int, queries_from: int) -> Any:
    """A :class:`Workspace`; a function, because TileLang traces calls of functions."""
    return Workspace(table=table, rows=rows, queries_from=queries_from)
