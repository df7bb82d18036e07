"""What the steps of :mod:`choose` share: a row's arguments, a block's variables, and reading the row."""

from types import SimpleNamespace
from typing import Any

import tilelang.language as T

from deepinfer_cuda.tl.sampling.parts import gather
from deepinfer_cuda.tl.sampling.rows import pure, read

BUCKETS = 2048
LISTED = 8192
"""Tokens of a bucket that fit into shared memory; a power of two."""
RANK_BITS = 50


class Block(SimpleNamespace):
    """Sizes, arguments of the row and variables of a block of threads, by the names that ``choose`` gives them."""


def relative(b: Block, value: Any) -> Any:
    """``exp`` of a logit over the temperature, 1 at the peak."""
    return pure("float32", "di_relative", value, b.peak, b.heat, b.cold)


def scaled(b: Block, value: Any) -> Any:
    """Its logarithm."""
    return pure("float32", "di_scaled", value, b.peak, b.heat, b.cold)


def bucket_of(b: Block, value: Any) -> Any:
    """The bucket of the histogram that a logit falls into."""
    return pure("int32", "di_bucket", value, b.peak, b.heat, b.cold)


def stays(b: Block, v: Any, token: Any) -> Any:
    """Whether ``values[v]``, that of ``token``, is at or before the last token to stay."""
    return pure("bool", "di_stays", b.values[v], token, b.edge[0], b.edge_id[0])


@T.macro
def read_turn(b, column) -> None:
    """The values from ``column`` on."""
    read(b.values, b.logits, b.row, column, b.width, b.vector)


@T.macro
def sum_up(b, value, sums) -> None:
    """``value`` summed over the row, and ``before[0]`` over the blocks before this one."""
    gather(value, b.before, sums, b.gross, b.thread, b.rank, b.warps, b.parts)
