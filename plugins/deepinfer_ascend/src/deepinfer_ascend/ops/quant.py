"""Group quantisation of activations, and weights in the forms of the device (``spec/kernels.md`` 1.1, 2.1, 7.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend import vendor
from deepinfer_ascend.contracts import misfit
from deepinfer_ascend.plain import plain_op
from deepinfer_ascend.scale_words import GROUP, SPAN
from deepinfer_ascend.tensors import QuantTensor
from deepinfer_ascend.weights import prepared

FORMS = {("e4m3", "ue8m0"), ("e2m1", "ue8m0"), ("e2m1", "e4m3"), ("e4m3", "f32"), ("e2m1", "f32")}
"""Pairs of element and scale format that exist."""


def can_cast(width: int, cast: tuple[str, int, str]) -> bool:
    """Whether rows of ``width`` values can be quantised so."""
    fmt, group, sf = cast
    return (fmt, sf) in FORMS and group > 0 and width % group == 0 and not (fmt == "e2m1" and width % 2)


def cast_per_token(
    x: Tensor, *, fmt: str = "e4m3", group: int = 32, sf: str = "ue8m0", layout: str = "gemm", out: Any = None
) -> Any:
    """Quantise ``x`` ``[..., K]`` in groups of ``group`` along K. Scale words are column-major in every ``layout``.

    bf16 rows of whole words in groups of 32 take the kernel of tile-kernels, everything else the plain op.

    :raises ShapeContractError: K is not a multiple of ``group``, or the pair (``fmt``, ``sf``) does not exist.
    """
    if _takes(x, fmt, group, sf):
        rows = x.reshape(-1, x.shape[-1])
        cast = vendor.symbol("tile_kernels.per_token_cast", x)
        data, words = cast(rows, fmt, group, use_tma_aligned_col_major_sf=True, round_sf=True, use_packed_ue8m0=True)
        data = data.view(torch.uint8).view(*x.shape[:-1], -1)
        made = QuantTensor(data, fmt, group, sf, words)
    else:
        made = of_plain(plain_op("quant.cast_per_token")(x, fmt=fmt, group=group, sf=sf))
    if out is None:
        return made
    form = (list(made.shape), fmt, group, sf)
    if not isinstance(out, QuantTensor) or (list(out.shape), out.fmt, out.group, out.sf_kind) != form:
        raise misfit("quant.cast_per_token", "out", form, type(out).__name__)
    return out.overwrite(made)


def of_plain(q: Any) -> QuantTensor:
    """What a plain op made, in the form of this backend."""
    return QuantTensor.of_codes(q.data, q.sf, fmt=q.fmt, group=q.group, sf_kind=q.sf_kind)


def _takes(x: Any, fmt: str, group: int, sf: str) -> bool:
    return (
        isinstance(x, Tensor)
        and x.dtype == torch.bfloat16
        and x.dim() >= 2
        and x.shape[-1] > 0
        and x.shape[-1] % SPAN == 0
        and x.stride(-1) == 1
        and x.numel() > 0
        and (fmt, group, sf) in (("e4m3", GROUP, "ue8m0"), ("e2m1", GROUP, "ue8m0"))
    )


def dequantize(q: Any, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The values of ``q`` as ``dtype``."""
    values: Tensor = q.values
    return values.to(dtype)


def prepare_weight(name: str, w: Any, sf: Any = None, *, use: str = "dense") -> Any:
    """A checkpoint weight on its device: codes in NZ with a scale word for two groups of 32 inputs of each output.

    :param w: one weight ``[out, in]``; or a list, joined along the outputs; for ``use="experts"`` a list with one entry
        (a weight or a list to join) for each expert.
    :param sf: the scales, nested like ``w``.
    :param use: ``dense``, ``experts`` or ``heads:G``.
    :raises ShapeContractError: a scale grid or a shape does not fit.
    """
    found = prepared(name, w, sf, use)
    return plain_op("quant.prepare_weight")(name, w, sf, use=use) if found is None else found


OPS = {
    "quant.cast_per_token": cast_per_token,
    "quant.dequantize": dequantize,
    "quant.prepare_weight": prepare_weight,
}
