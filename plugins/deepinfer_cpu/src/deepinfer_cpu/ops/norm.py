"""RMS normalisation (``spec/model.md`` 2.0, ``spec/kernels.md`` 2.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_cpu.contracts import FLOATS, check_floats, check_like
from deepinfer_cpu.ops.quant import cast_per_token, check_cast
from deepinfer_cpu.scalars import f32
from deepinfer_cpu.tensors import Quantised


def rms(
    x: Tensor,
    w: Tensor,
    *,
    eps: float,
    residual: Tensor | None = None,
    cast: tuple[str, int, str] | None = None,
    want_bf16: bool = True,
    out_scale: float = 1.0,
    out: Tensor | None = None,
) -> tuple[Tensor | None, Quantised | None]:
    """``x * rsqrt(mean(x^2) + eps) * (w * out_scale)`` in fp32, rounded once to the dtype of ``x`` ``[..., d]``.

    ``residual`` is updated in place to ``x + residual`` (in the dtype of ``x``) and is what gets normalised. ``cast``
    ``(fmt, group, sf)`` also returns the quantised result, made from the rounded value.
    """
    check_norm("norm.rms", x, w)
    if cast is not None:
        check_cast("norm.rms", x.shape[-1], *cast)
    if out is not None:
        check_like("norm.rms", "out", out, x.shape, x.dtype)
    if residual is not None:
        check_like("norm.rms", "residual", residual, x.shape, x.dtype)
        x = residual.add_(x)
    y = normalise(x, w if out_scale == 1.0 else w.float() * out_scale, eps)
    if out is not None:
        y = out.copy_(y)
    q = cast_per_token(y, fmt=cast[0], group=cast[1], sf=cast[2]) if cast is not None else None
    return (y if want_bf16 else None), q


def check_norm(op: str, x: Tensor, w: Tensor) -> None:
    """Whether rows of ``x`` can be normalised by ``w``."""
    check_floats(op, "x", x)
    check_like(op, "w", w, x.shape[-1:], *FLOATS)


def normalise(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """The norm itself, in the dtype of ``x``."""
    if x.dtype == torch.float32:
        return (x * inverse_rms(x, eps)).mul_(w)
    xf = x.float()
    return xf.mul_(inverse_rms(xf, eps)).mul_(w).to(x.dtype)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """``rsqrt(mean(x^2) + eps)`` of fp32 rows ``[..., d]`` -> ``[..., 1]``."""
    return (x * x).sum(-1, keepdim=True).div_(f32(x.shape[-1], x.device)).add_(f32(eps, x.device)).rsqrt_()
