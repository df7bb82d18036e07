"""RMS normalisation (``spec/model.md`` 2.0, ``spec/kernels.md`` 2.1)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from deepinfer_ascend.ops.quant import can_cast, cast_per_token
from deepinfer_ascend.plain import plain_op


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
) -> tuple[Tensor | None, Any]:
    """``x * rsqrt(mean(x^2) + eps) * (w * out_scale)`` in fp32, rounded once to the dtype of ``x`` ``[..., d]``.

    ``residual`` is updated in place to ``x + residual`` (in the dtype of ``x``) and is what gets normalised. ``cast``
    ``(fmt, group, sf)`` also returns the quantised result, made from the rounded value.
    """
    if cast is not None and not (x.dim() and can_cast(x.shape[-1], cast)):
        return plain_op("norm.rms")(x, w, eps=eps, cast=cast)  # type: ignore[no-any-return]  # it refuses that
    y, _ = plain_op("norm.rms")(x, w, eps=eps, residual=residual, out_scale=out_scale, out=out)
    q = None if cast is None else cast_per_token(y, fmt=cast[0], group=cast[1], sf=cast[2])
    return (y if want_bf16 else None), q


OPS = {"norm.rms": rms}
