"""RMS normalisation (``spec/model.md`` 2.0, ``spec/kernels.md`` 2.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_cpu.contracts import shape_error
from deepinfer_cpu.ops.quant import cast_per_token
from deepinfer_cpu.scalars import f32
from deepinfer_cpu.tensors import QuantTensor


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
) -> tuple[Tensor | None, QuantTensor | None]:
    """``x * rsqrt(mean(x^2) + eps) * (w * out_scale)`` in fp32, rounded once to the dtype of ``x`` ``[..., d]``.

    ``residual`` is updated in place to ``x + residual`` (in the dtype of ``x``) and is what gets normalised. ``cast``
    ``(fmt, group, sf)`` also returns the quantised result, made from the rounded value.
    """
    if x.shape[-1] != w.shape[-1]:
        raise shape_error("norm.rms", "w", f"[{x.shape[-1]}]", list(w.shape))
    if residual is not None:
        x = residual.add_(x)
    y = normalise(x, w if out_scale == 1.0 else w.float() * out_scale, eps)
    if out is not None:
        y = out.copy_(y)
    q = cast_per_token(y, fmt=cast[0], group=cast[1], sf=cast[2]) if cast is not None else None
    return (y if want_bf16 else None), q


def normalise(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """The norm itself, in the dtype of ``x``."""
    if x.dtype == torch.float32:
        return (x * inverse_rms(x, eps)).mul_(w)
    xf = x.float()
    return xf.mul_(inverse_rms(xf, eps)).mul_(w).to(x.dtype)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """``rsqrt(mean(x^2) + eps)`` of fp32 rows ``[..., d]`` -> ``[..., 1]``."""
    return (x * x).sum(-1, keepdim=True).div_(f32(x.shape[-1])).add_(f32(eps)).rsqrt_()
