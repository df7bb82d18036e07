"""norm -> rotary -> Hadamard -> cast -> store, one stage after the other (``spec/kernels.md`` 2.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from deepinfer_cpu.contracts import INTEGERS, check_floats, check_like, shape_error
from deepinfer_cpu.ops import cache
from deepinfer_cpu.ops.norm import check_norm, normalise
from deepinfer_cpu.ops.quant import cast_per_token, check_cast
from deepinfer_cpu.tensors import Quantised

SCALING = ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings")
COPY_STAGES = ("norm", "transform", "cast_back")


@frozen(eq=False)
class RopeRows:
    """Table rows of a step's tokens, shaped for a pair ``(x0, x1)``: ``x0 * first + x1 * second``.

    Forward: first = (cos, sin), second = (-sin, cos); conjugate flips the sign of sin. fp32 ``[T, R/2, 2]``.
    """

    first: Tensor
    second: Tensor
    first_conjugate: Tensor
    second_conjugate: Tensor

    @property
    def rotary_dim(self) -> int:
        return self.first.shape[-2] * 2


def rope_table(max_pos: int, rotary_dim: int, *, theta: float, scaling: Mapping[str, float] | None = None) -> Tensor:
    """fp32 ``[max_pos, R]``: cosines of R/2 frequencies, then sines (``spec/model.md`` 2.0).

    Frequencies are rounded to fp32, so is the product with the position; all users share one table. ``scaling`` (keys
    factor, beta_fast, beta_slow, original_max_position_embeddings) selects YaRN.
    """
    if max_pos < 0 or rotary_dim < 2 or rotary_dim % 2 or theta <= 0.0:
        expected, got = "0 or more positions, an even width, a positive theta", (max_pos, rotary_dim, theta)
        raise shape_error("transform.rope_table", "max_pos, rotary_dim, theta", expected, got)
    if scaling is not None and not set(SCALING) <= set(scaling):
        raise shape_error("transform.rope_table", "scaling", f"a mapping with {SCALING}", sorted(scaling))
    frequencies = torch.tensor(rope_frequencies(rotary_dim, theta, scaling), dtype=torch.float64).to(torch.float32)
    angles = torch.arange(max_pos, dtype=torch.float32).unsqueeze(1) * frequencies
    # The cosine of the fp32 angle, correctly rounded whatever vector width torch picks.
    angles = angles.double()
    return torch.cat([angles.cos(), angles.sin()], dim=1).to(torch.float32)


def rope_frequencies(rotary_dim: int, theta: float, scaling: Mapping[str, float] | None) -> list[float]:
    """Frequencies f_i before rounding to fp32."""
    plain = [theta ** (-2.0 * i / rotary_dim) for i in range(rotary_dim // 2)]
    if scaling is None:
        return plain
    original = float(scaling["original_max_position_embeddings"])

    def turns(n: float) -> float:
        """Index of the frequency that makes ``n`` turns over the original context."""
        return rotary_dim * math.log(original / (2 * math.pi * n)) / (2 * math.log(theta))

    low = max(math.floor(turns(scaling["beta_fast"])), 0)
    high = min(math.ceil(turns(scaling["beta_slow"])), rotary_dim - 1)
    out = []
    for i, f in enumerate(plain):
        ramp = min(max((i - low) / max(high - low, 1e-3), 0.0), 1.0)
        out.append(f * (1 - ramp) + f / float(scaling["factor"]) * ramp)
    return out


def rope_rows(cos_sin: Tensor, positions: Tensor) -> RopeRows:
    """Rows of ``cos_sin`` ``[max_pos, R]`` at ``positions`` ``[T]``; made once a step and shared by its layers."""
    if cos_sin.dim() != 2 or cos_sin.shape[1] % 2:
        raise shape_error("transform.rope_rows", "cos_sin", "[positions, R] with an even R", list(cos_sin.shape))
    if positions.dim() != 1 or positions.dtype not in INTEGERS:
        got = (positions.dtype, list(positions.shape))
        raise shape_error("transform.rope_rows", "positions", "int32 or int64 [T]", got)
    half = cos_sin.shape[1] // 2
    rows = cos_sin.index_select(0, positions)
    cos, sin = rows[:, :half], rows[:, half:]
    return RopeRows(
        first=torch.stack([cos, sin], dim=-1),
        second=torch.stack([-sin, cos], dim=-1),
        first_conjugate=torch.stack([cos, -sin], dim=-1),
        second_conjugate=torch.stack([sin, cos], dim=-1),
    )


def rotary(x: Tensor, rope: tuple[Any, ...], *, out: Tensor | None = None) -> Tensor:
    """Rotate the last R dimensions of ``x`` (``[n, d]`` or ``[n, h, d]``) in adjacent pairs; fp32, one rounding.

    ``rope`` is ``(rows, conjugate)`` or ``(cos_sin, positions, conjugate)``. ``out`` may be ``x``.
    """
    check_floats("transform.rotary", "x", x, 2, 3)
    rows, conjugate = _rows(rope)
    size = rows.rotary_dim
    if size > x.shape[-1]:
        raise shape_error("transform.rotary", "rope", f"at most {x.shape[-1]} wide", size)
    if out is not None and out is not x:
        check_like("transform.rotary", "out", out, x.shape, x.dtype)
    first, second = (rows.first_conjugate, rows.second_conjugate) if conjugate else (rows.first, rows.second)
    if first.shape[0] != x.shape[0]:
        raise shape_error("transform.rotary", "rope", f"rows of {x.shape[0]} tokens", first.shape[0])
    if x.dim() == 3:
        first, second = first.unsqueeze(1), second.unsqueeze(1)
    if out is None:
        y = x.clone()
    else:
        y = out if out is x else out.copy_(x)
    tail = y.narrow(-1, x.shape[-1] - size, size)
    pairs = tail.float().reshape(*x.shape[:-1], size // 2, 2)
    # addcmul is one fused multiply-add: fma(x0, cos, -(x1 sin)) and fma(x0, sin, x1 cos).
    turned = torch.addcmul(pairs.narrow(-1, 1, 1) * second, pairs.narrow(-1, 0, 1), first)
    tail.copy_(turned.view(tail.shape))
    return y


def _rows(rope: tuple[Any, ...]) -> tuple[RopeRows, bool]:
    if len(rope) == 2:
        return rope
    cos_sin, positions, conjugate = rope
    return rope_rows(cos_sin, positions), conjugate


def hadamard(x: Tensor, scale: float) -> Tensor:
    """Walsh-Hadamard butterflies of ascending distance in fp32, times ``scale``; ``x`` ``[..., 2^k]``."""
    check_floats("transform.hadamard", "x", x)
    size = x.shape[-1]
    if not size or size & (size - 1):
        raise shape_error("transform.hadamard", "x", "a last dimension that is a power of two", size)
    y = x.float().reshape(-1, size)
    distance = 1
    while distance < size:
        pairs = y.view(-1, size // (2 * distance), 2, distance)
        y = torch.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], dim=2).view(-1, size)
        distance *= 2
    return (y * scale).view(x.shape).to(x.dtype)


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
    :param hadamard: the scale of the transform.
    :param cast: ``(fmt, group, sf)``: the result is a QuantTensor.
    :param store: ``(view, slots)``: quantise by the view's format and write; the result is None.
    :param out: where the result goes; it may be ``x``, and then what no stage changes is left alone.
    :param copy_stage: also return the value after ``norm``, after ``transform`` (before the cast), or ``cast_back``:
        what was stored or cast, dequantised and rounded to the dtype of ``x``.
    :returns: the result, or ``(result, copy)`` when ``copy_stage`` is given.
    """
    if copy_stage is not None and copy_stage not in COPY_STAGES:
        raise shape_error("transform.fused", "copy_stage", f"one of {COPY_STAGES}", copy_stage)
    if cast is not None:
        check_cast("transform.fused", x.shape[-1], *cast)
    if copy_stage == "cast_back" and cast is None and store is None:
        raise shape_error("transform.fused", "copy_stage", "another stage where nothing is cast", copy_stage)
    if (cast is not None) + (store is not None) + (out is not None) > 1:
        raise shape_error("transform.fused", "cast, store, out", "one of them at most", "several")
    if out is not None:
        check_like("transform.fused", "out", out, x.shape, x.dtype)
    if norm is None:
        check_floats("transform.fused", "x", x)
    else:
        check_norm("transform.fused", x, norm[0])
    y = x if norm is None else normalise(x, norm[0], norm[1])
    copy = y if copy_stage == "norm" else None
    if rope is not None:
        mine = y is not x or out is x
        y = rotary(y, rope, out=y if mine and copy is None else None)
    if hadamard is not None:
        y = _hadamard(y, hadamard)
    if copy_stage == "transform":
        copy = y
    result: Tensor | Quantised | None = y
    if store is not None:
        stored = cache.store(y, store[0], store[1], want_values=copy_stage == "cast_back")
        result = None
        if stored is not None:
            copy = stored.to(x.dtype)
    elif cast is not None:
        result = cast_per_token(y, fmt=cast[0], group=cast[1], sf=cast[2])
        if copy_stage == "cast_back":
            copy = result.values.to(x.dtype)
    elif out is not None:
        result = y if y is out else out.copy_(y)
    return result if copy_stage is None else (result, copy)


_hadamard = hadamard
