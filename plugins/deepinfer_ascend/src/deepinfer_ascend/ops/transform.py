"""norm -> rotary -> cast -> store (``spec/kernels.md`` 2.1): the plain stages, with casts in the form of the device."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from deepinfer_ascend.ops.quant import of_plain
from deepinfer_ascend.plain import plain_op


def fused(
    x: Tensor,
    *,
    norm: tuple[Tensor, float] | None = None,
    rope: tuple[Any, ...] | None = None,
    hadamard: float | None = None,
    cast: tuple[str, int, str] | None = None,
    store: tuple[Any, Tensor] | None = None,
    copy_stage: str | None = None,
    out: Tensor | None = None,
) -> Any:
    """``x`` ``[n, d]`` or ``[n, h, d]`` through the named stages, rounded to its dtype after each.

    :param norm: ``(weight, eps)``. :param rope: ``(rows, conjugate)`` or ``(cos_sin, positions, conjugate)``.
    :param cast: ``(fmt, group, sf)``: the result is a QuantTensor.
    :param store: ``(view, slots)``: quantise by the view's format and write; the result is None.
    :param copy_stage: also return the value after ``norm``, ``transform`` or ``cast_back``.
    :returns: the result, or ``(result, copy)`` when ``copy_stage`` is given.
    """
    made = plain_op("transform.fused")(
        x, norm=norm, rope=rope, hadamard=hadamard, cast=cast, store=store, copy_stage=copy_stage, out=out
    )
    if cast is None:
        return made
    if copy_stage is None:
        return of_plain(made)
    result, copy = made
    return of_plain(result), copy


OPS = {"transform.fused": fused}
