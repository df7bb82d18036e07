"""Queries of a block of heads to shared memory, 16 bytes a copy, all of them under way at once."""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.tl.attention.softmax import TILE
from deepinfer_cuda.tl.attention.workspace import HALF


def query_copies(heads: Any) -> Any:
    """A macro by which 128 threads start to fetch half ``side`` of the columns of ``TILE`` heads from ``head0`` on.

    Heads past the last are zeros.
    """

    @T.macro
    def bring_half(q, row, head0, thread, side, to):
        lane, row_of_16 = thread % 8, thread // 8
        for part in T.unroll(TILE // 16):
            head = head0 + part * 16 + row_of_16
            there = T.if_then_else(head < heads, 0, -1)
            for block in T.unroll(HALF // 64):
                T.call_extern(
                    "handle", "di::copy16_async", T.address_of(to[part * 16 + row_of_16, block * 64 + lane * 8]),
                    T.address_of(q[row, T.min(head, heads - 1), side * HALF + block * 64 + lane * 8]), there,
                )  # fmt: skip

    return bring_half
