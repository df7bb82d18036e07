"""RMS norm in fp64 (``spec/model.md`` 2.0)."""

from __future__ import annotations

from torch import Tensor


def rms(x: Tensor, w: Tensor, eps: float, out_scale: float = 1.0) -> Tensor:
    """``w * out_scale * x / sqrt(mean(x^2) + eps)``, unrounded."""
    xd = x.double()
    return xd / (xd.square().mean(-1, keepdim=True) + eps).sqrt() * (w.double() * out_scale)
