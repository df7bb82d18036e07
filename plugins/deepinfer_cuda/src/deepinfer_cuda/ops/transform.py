"""norm -> rotary -> cast -> store in one launch (``spec/kernels.md`` 2.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_cuda import rows
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.quantised import Target
from deepinfer_cuda.rope import RopeRows, angles, as_plain
from deepinfer_cuda.tl.parts.row_layout import CHUNK

COPY_STAGES = ("norm", "transform", "cast_back")
MANY_ROWS = 8192
"""Rows from which a thread may keep several in flight."""


def rope_rows(cos_sin: Tensor, positions: Tensor) -> Any:
    """Rows of ``cos_sin`` ``[max_pos, R]`` at what ``positions`` ``[T]`` are now; see :class:`RopeRows`."""
    if not rows.on_device(cos_sin) or cos_sin.dim() != 2 or cos_sin.shape[1] % 2 or positions.dim() != 1:
        return plain_op("transform.rope_rows")(cos_sin, positions)
    if positions.dtype not in (torch.int32, torch.int64):
        return plain_op("transform.rope_rows")(cos_sin, positions)
    return RopeRows(cos_sin, positions.clone())


def rotary(x: Tensor, rope: tuple[Any, ...], *, out: Tensor | None = None) -> Tensor:
    """Rotate the last R dimensions of ``x`` (``[n, d]`` or ``[n, h, d]``) in adjacent pairs; fp32, one rounding.

    ``rope`` is ``(rows, conjugate)`` or ``(cos_sin, positions, conjugate)``. ``out`` may be ``x``: then only the
    rotated values are read and written.
    """
    turn = angles(rope)
    if turn is None or x.dim() < 2 or not _takes_turn(x, turn, out):
        return plain_op("transform.rotary")(x, as_plain(rope), out=out)  # type: ignore[no-any-return]
    return _turn(x, turn, out)


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

    :param norm: ``(weight, eps)``.
    :param rope: see :func:`rotary`.
    :param hadamard: the scale of the transform; calls that have it are composed of plain ops.
    :param cast: ``(fmt, group, sf)``: the result is a QuantTensor.
    :param store: ``(view, slots)``: quantise by the view's format and write; the result is None.
    :param copy_stage: also return the value after ``norm``, after ``transform`` (before the cast), or ``cast_back``:
        what was stored or cast, dequantised and rounded to the dtype of ``x``.
    :param out: where the result goes; ``x`` itself where only rotation is asked for: then the rest is not touched.
    :returns: the result, or ``(result, copy)`` when ``copy_stage`` is given.
    """
    turn = None if rope is None else angles(rope)
    stages = (norm, cast, store, copy_stage)
    if hadamard is not None or (rope is not None and turn is None) or not _takes(x, turn, *stages, out):
        options = {"norm": norm, "hadamard": hadamard, "cast": cast, "store": store, "copy_stage": copy_stage}
        return plain_op("transform.fused")(x, rope=as_plain(rope), **options, out=out)
    if turn is not None and stages == (None, None, None, None):
        return _turn(x, turn, out)
    given = rows.as_rows(x)
    spec = cast if store is None else rows.cast_of(store[0])
    back = copy_stage == "cast_back"
    y, copied, exact = out, None, None
    arguments: dict[str, Any] = {}
    target = None
    if (cast is None and store is None) or copy_stage == "transform" or (back and store and not spec[1]):  # type: ignore[index]
        y = _like(x) if out is None else out
    if copy_stage == "norm":
        copied = _like(x) if norm is not None else x
    if cast is not None:
        target = Target.empty(x.shape, cast, x.device, want_exact=back)
        arguments |= target.arguments(given.shape)
        exact = target.exact
    elif store is not None and back and y is None:
        exact = _like(x)
        arguments["exact"] = rows.as_rows(exact)
    rows.launch_rows(
        given,
        norm=norm,
        rope=turn,
        cast=spec,
        store=store,
        y=None if y is None else rows.as_rows(y),
        copied=rows.as_rows(copied) if copied is not None and copied is not x else None,
        unroll=_in_flight(given),
        **arguments,
    )
    result = None if store is not None else y if target is None else target.quantised()
    if copy_stage is None:
        return result
    return result, {"norm": copied, "transform": y, "cast_back": y if exact is None else exact}[copy_stage]


def _like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _turn(x: Tensor, turn: tuple[Tensor, Tensor, bool], out: Tensor | None) -> Tensor:
    """Rotation alone; in place, the values in front of the rotated ones are left alone."""
    if out is not None and out.data_ptr() == x.data_ptr() and out.stride() == x.stride():
        tail = rows.as_rows(x)[..., x.shape[-1] - turn[0].shape[1] :]
        rows.launch_rows(tail, rope=turn, y=tail, unroll=_in_flight(tail))
        return out
    y = _like(x) if out is None else out
    rows.launch_rows(rows.as_rows(x), rope=turn, y=rows.as_rows(y))
    return y


def _in_flight(given: Tensor) -> int:
    """Rows that a thread has on their way: several heads of a token share its angles, where they are short and many."""
    n, heads, width = given.shape
    return 4 if n * heads >= MANY_ROWS and heads % 4 == 0 and width <= 128 else 1


def _takes_turn(x: Tensor, turn: tuple[Tensor, Tensor, bool], out: Tensor | None) -> bool:
    return rows.takes_rows(x) and rows.takes_angles(x, turn) and _takes_out(x, turn[0].shape[1], out)


def _takes_out(x: Tensor, size: int, out: Tensor | None) -> bool:
    """``out`` is where ``x`` is (and what is rotated a row of its own), or apart from it."""
    if out is None:
        return True
    if not rows.takes_target(out, x):
        return False
    if out.data_ptr() == x.data_ptr():
        return out.stride() == x.stride() and rows.has_layout(size) and (x.shape[-1] - size) % CHUNK == 0
    return True


def _takes(
    x: Tensor,
    turn: tuple[Tensor, Tensor, bool] | None,
    norm: tuple[Tensor, float] | None,
    cast: tuple[str, int, str] | None,
    store: tuple[Any, Tensor] | None,
    copy_stage: str | None,
    out: Tensor | None,
) -> bool:
    if not rows.takes_rows(x) or x.dim() < 2:
        return False
    if norm is None and turn is None and cast is None and store is None:
        return False  # nothing to do
    if (cast is not None) + (store is not None) + (out is not None) > 1:
        return False  # refused by the plain op, as what else breaks the contract is
    if copy_stage is not None and (
        copy_stage not in COPY_STAGES
        or (copy_stage == "cast_back" and cast is None and store is None)
        or (copy_stage == "transform" and norm is None and turn is None and out is not None)
    ):
        return False
    return (
        (norm is None or rows.takes_norm(x, norm[0]))
        and (turn is None or rows.takes_angles(x, turn))
        and (cast is None or rows.takes_cast(x.shape[-1], cast))
        and (store is None or rows.takes_store(x, *store))
        and _takes_out(x, turn[0].shape[1] if turn is not None else x.shape[-1], out)
    )


OPS = {"transform.fused": fused, "transform.rotary": rotary, "transform.rope_rows": rope_rows}
DELEGATED = {
    "transform.hadamard": "no layer of the model has one",
    "transform.rope_table": "once, at load",
}
"""What the op of ``cpu`` does on this device, and why that is enough."""
