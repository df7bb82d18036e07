"""Group quantisation of activations (``spec/kernels.md`` 1.1, 2.1), and weights in the form of the checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_cuda import grouped, products, rows
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.quantised import Target
from deepinfer_cuda.tensors import QuantTensor
from deepinfer_cuda.tl.parts.row_layout import CHUNK
from deepinfer_cuda.tl.store.dequantise import dequantise
from deepinfer_cuda.weights import prepared

WIDTHS = (512, 256, 128, 64, 32)
"""Pieces that long rows are cut into, best first."""


def cast_per_token(
    x: Tensor,
    *,
    fmt: str = "e4m3",
    group: int = 32,
    sf: str = "ue8m0",
    layout: str = "gemm",
    out: Any = None,
) -> Any:
    """Quantise ``x`` ``[..., K]`` in groups of ``group`` along K; scales are plain rows in every ``layout``.

    The result holds what products and the indexer read: bf16 values of E4M3, codes of E2M1 (``quantised.Target``).

    :raises ShapeContractError: K is not a multiple of ``group``, or the pair (``fmt``, ``sf``) does not exist.
    """
    cast = (fmt, group, sf)
    width = _piece(x, cast) if _takes(x, out, cast) else 0
    if not width:
        options = {"fmt": fmt, "group": group, "sf": sf, "layout": layout}
        if not isinstance(out, QuantTensor) or (out.shape, out.fmt, out.group, out.sf_kind) != (x.shape, *cast):
            return plain_op("quant.cast_per_token")(x, **options, out=out)
        return overwrite(out, plain_op("quant.cast_per_token")(x, **options))
    target = Target.empty(x.shape, cast, x.device) if out is None else Target.of(out)
    if x.numel():
        pieces = rows.as_pieces(x, width)
        rows.launch_rows(pieces, cast=cast, **target.arguments(pieces.shape))
    if out is None:
        return target.quantised()
    if "values" in out.forms:
        out.values.copy_(QuantTensor(fmt=fmt, group=group, sf_kind=sf, sf=out.sf, data=out.data).values)
    return out


def dequantize(q: Any, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The values of ``q`` as ``dtype``."""
    if not isinstance(q, QuantTensor):
        return plain_op("quant.dequantize")(q, dtype=dtype)  # type: ignore[no-any-return]
    if dtype != torch.bfloat16:
        return q.values.to(dtype, copy=True)
    if "exact" in q.forms:
        return q.exact.clone()  # what ``q`` holds stays its own
    if not rows.on_device(q.sf) or q.group % CHUNK or not q.sf.is_contiguous():
        return q.exact
    codes = q.data.contiguous()
    out = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device)
    if out.numel():
        launch = dequantise(fmt=q.fmt, group=q.group, sf=q.sf_kind, unroll=4)
        launch(codes.view(out.numel() // CHUNK, -1), q.sf.view(-1), out.view(-1, CHUNK))
    return out


def overwrite(out: QuantTensor, q: Any) -> QuantTensor:
    """Put ``q`` into every form that ``out`` holds."""
    forms = out.forms
    if "data" in forms:
        out.data.copy_(q.data)
    if "exact" in forms:
        out.exact.copy_(q.values)
    if "values" in forms:
        out.values.copy_(q.values)
    out.sf.copy_(q.sf)
    return out


def _takes(x: Tensor, out: Any, cast: tuple[str, int, str]) -> bool:
    if not rows.on_device(x) or x.dtype != torch.bfloat16 or not x.dim() or (x.stride(-1) != 1 and x.shape[-1] > 1):
        return False
    if out is None:
        return True
    if not isinstance(out, QuantTensor) or (out.shape, out.fmt, out.group, out.sf_kind) != (x.shape, *cast):
        return False
    held = [out.sf, *(getattr(out, form) for form in out.forms)]
    return rows.on_device(*held) and all(t.is_contiguous() for t in held)


def _piece(x: Tensor, cast: tuple[str, int, str]) -> int:
    """Width of the pieces that rows of ``x`` are quantised in; 0: the kernel does not take them."""
    width = x.shape[-1]
    return next((w for w in WIDTHS if not width % w and rows.takes_cast(w, cast)), 0)


def prepare_weight(name: str, w: Any, sf: Any = None, *, use: str = "dense") -> Any:
    """A checkpoint weight on its device, in the form of the checkpoint, or in the layout of the kernel that multiplies
    it; other forms are made when an op asks for them.

    :param w: one weight ``[out, in]``; or a list, joined along the outputs; for ``use="experts"`` a list with one entry
        (a weight or a list to join) for each expert.
    :param sf: the scales, nested like ``w``.
    :param use: ``dense``, ``experts`` or ``heads:G``.
    :raises ShapeContractError: a scale grid or a shape does not fit.
    """
    found = prepared(name, w, sf, use)
    if found is None:
        return plain_op("quant.prepare_weight")(name, w, sf, use=use)
    if found.device.type == "cuda":
        products.keep_packed(found)
        grouped.keep_packed(found)
    return found


OPS = {
    "quant.cast_per_token": cast_per_token,
    "quant.dequantize": dequantize,
    "quant.prepare_weight": prepare_weight,
}
