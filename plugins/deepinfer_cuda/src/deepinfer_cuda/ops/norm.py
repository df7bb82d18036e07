"""RMS normalisation (``spec/model.md`` 2.0, ``spec/kernels.md`` 2.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_cuda import rows
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.quantised import Target


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
    ``(fmt, group, sf)`` also returns the quantised result, made from the rounded value. One launch for bf16 rows.
    """
    if not _takes(x, w, residual, cast, want_bf16, out):
        options = {"residual": residual, "cast": cast, "want_bf16": want_bf16, "out_scale": out_scale, "out": out}
        return plain_op("norm.rms")(x, w, eps=eps, **options)  # type: ignore[no-any-return]
    y = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None and want_bf16 else out
    given = rows.as_rows(x)
    target = None if cast is None else Target.empty(x.shape, cast, x.device)
    rows.launch_rows(
        given,
        norm=(w, eps),
        out_scale=out_scale,
        residual=None if residual is None else rows.as_rows(residual),
        cast=cast,
        y=None if y is None else rows.as_rows(y),
        **({} if target is None else target.arguments(given.shape)),
    )
    return y if want_bf16 else None, None if target is None else target.quantised()


def _takes(
    x: Tensor,
    w: Tensor,
    residual: Tensor | None,
    cast: tuple[str, int, str] | None,
    want_bf16: bool,
    out: Tensor | None,
) -> bool:
    return (
        rows.takes_rows(x)
        and rows.takes_norm(x, w)
        and (residual is None or (rows.takes_target(residual, x) and residual.is_contiguous()))
        and (out is None or rows.takes_target(out, x))
        and (cast is None or rows.takes_cast(x.shape[-1], cast))
        and (want_bf16 or cast is not None)
    )


OPS = {"norm.rms": rms}
