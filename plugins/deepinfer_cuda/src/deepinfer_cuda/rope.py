"""Angles of a step's tokens on the device: the table and the positions, which kernels look up themselves."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from deepinfer_cuda.plain import plain_op


class RopeRows:
    """What ``transform.rope_rows`` gives: nothing is computed before an op needs it.

    A row of the table is read where it lies, 256 bytes of it, so gathering the rows first would only move them twice.
    """

    def __init__(self, cos_sin: Tensor, positions: Tensor) -> None:
        self.cos_sin, self.positions = cos_sin, positions

    @property
    def rotary_dim(self) -> int:
        return self.cos_sin.shape[1]

    @functools.cached_property
    def plain(self) -> Any:
        """The gathered rows, as the plain ops take them."""
        return plain_op("transform.rope_rows")(self.cos_sin, self.positions)


def angles(rope: tuple[Any, ...]) -> tuple[Tensor, Tensor, bool] | None:
    """``(cos_sin, positions, conjugate)`` of a ``rope`` argument; None where it holds rows of another backend."""
    if len(rope) == 3:
        return rope
    rows, conjugate = rope
    return (rows.cos_sin, rows.positions, conjugate) if isinstance(rows, RopeRows) else None


def as_plain(rope: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """A ``rope`` argument for the plain ops."""
    if rope is not None and isinstance(rope[0], RopeRows):
        return rope[0].plain, rope[1]
    return rope
