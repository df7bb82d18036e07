"""Group quantisation of activations, and preparation of checkpoint weights (``spec/kernels.md`` 1.1, 2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from deepinfer_cpu import few_rows, rounding
from deepinfer_cpu.contracts import check_floats, shape_error
from deepinfer_cpu.scalars import f32, is_host
from deepinfer_cpu.tensors import PreparedWeight, Quantised, QuantTensor

Weights = Tensor | Sequence[Tensor]
"""One weight, or several whose outputs are joined."""
Scales = Tensor | Sequence[Tensor | None] | None

WEIGHT_BLOCK = 32
_FLOORS = {"e4m3": rounding.AMAX_FLOOR_E4M3, "e2m1": rounding.AMAX_FLOOR_E2M1}
_TOPS = {"e4m3": rounding.E4M3_MAX, "e2m1": rounding.E2M1_MAX}
FORMATS = {("e4m3", "ue8m0"), ("e2m1", "ue8m0"), ("e2m1", "e4m3"), ("e4m3", "f32"), ("e2m1", "f32")}


def cast_per_token(
    x: Tensor,
    *,
    fmt: str = "e4m3",
    group: int = 32,
    sf: str = "ue8m0",
    layout: str = "gemm",
    out: Quantised | None = None,
) -> Quantised:
    """Quantise ``x`` ``[..., K]`` (bf16 or fp32) in groups of ``group`` along K.

    In names of ``spec/model.md`` 2.0: Q8 is ``("e4m3", 32, "ue8m0")``, Q4mx ``("e2m1", 32, "ue8m0")`` and Q4nv
    ``("e2m1", 16, "e4m3")``.
    ``layout`` names the scale layout a product wants; here every layout is plain rows.

    :raises ShapeContractError: K is not a multiple of ``group``, or the pair (``fmt``, ``sf``) does not exist.
    """
    check_floats("quant.cast_per_token", "x", x)
    check_cast("quant.cast_per_token", x.shape[-1], fmt, group, sf)
    if out is not None and (out.values.shape, out.fmt, out.group, out.sf_kind) != (x.shape, fmt, group, sf):
        got = (list(out.values.shape), out.fmt, out.group, out.sf_kind)
        raise shape_error("quant.cast_per_token", "out", str((list(x.shape), fmt, group, sf)), got)
    few = sf == "ue8m0" and x.numel() <= few_rows.FEW_VALUES and is_host(x)
    result = _cast_few(x, fmt, group) if few else None
    if result is None:
        scaled, scale = scale_groups(x, fmt, group, sf)
        rounded = rounding.round_e4m3(scaled) if fmt == "e4m3" else rounding.round_e2m1(scaled)
        values = rounded.mul_(scale).view(x.shape)
        result = QuantTensor(values=values, fmt=fmt, group=group, sf_kind=sf, parts=(scaled, scale))
    return result if out is None else _fill(out, result)


def check_cast(op: str, width: int, fmt: str, group: int, sf: str) -> None:
    """Whether rows of ``width`` can be quantised so."""
    if (fmt, sf) not in FORMATS:
        raise shape_error(op, "fmt, sf", f"one of {sorted(FORMATS)}", (fmt, sf))
    if group <= 0 or width % group or (fmt == "e2m1" and width % 2):
        raise shape_error(op, "x", f"a last dimension that is a multiple of {group}", width)


def _cast_few(x: Tensor, fmt: str, group: int) -> QuantTensor | None:
    xf = x.float()
    values = few_rows.round_groups(xf.numpy(), fmt, group)
    if values is None:
        return None
    make_parts = partial(scale_groups, xf, fmt, group, "ue8m0")
    # Codes are made when somebody asks, but never from an x that the caller may have changed by then.
    parts = make_parts() if xf is x else make_parts
    return QuantTensor(values=torch.from_numpy(values), fmt=fmt, group=group, sf_kind="ue8m0", parts=parts)


def _fill(out: Quantised, result: QuantTensor) -> Quantised:
    if isinstance(out, QuantTensor):  # of another backend: its values come from its codes
        out.values.copy_(result.values)
    out.data.copy_(result.data)
    out.sf.copy_(result.sf)
    return out


def scale_groups(x: Tensor, fmt: str, group: int, sf: str) -> tuple[Tensor, Tensor]:
    """``x`` over its groups' scales, fp32 ``[..., K / group, group]``, and the scales ``[..., K / group, 1]``."""
    width = x.shape[-1]
    if width % group:
        raise shape_error("quant.cast_per_token", "x", f"a last dimension that is a multiple of {group}", width)
    xf = x if x.dtype == torch.float32 else x.float()
    shape = (*x.shape[:-1], width // group, group)
    if sf == "ue8m0" and x.numel() <= few_rows.FEW_VALUES and is_host(x):
        scaled, scales = few_rows.scale_groups(xf.numpy().reshape(shape), fmt)
        return torch.from_numpy(scaled), torch.from_numpy(scales)
    grouped = xf.view(shape) if xf.is_contiguous() else xf.reshape(shape)
    amax, device = grouped.abs().amax(-1, keepdim=True), x.device
    if sf == "ue8m0":
        scale = rounding.pow2_ceil(amax.clamp_(min=f32(_FLOORS[fmt], device)).div_(f32(_TOPS[fmt], device)))
        return grouped / scale, scale  # exact: a power of two
    if sf == "e4m3" and fmt == "e2m1":
        amax = amax.clamp_(min=f32(rounding.AMAX_FLOOR_E2M1_E4M3, device)).mul_(f32(rounding.SIXTH, device))
        scale = rounding.round_e4m3(amax.clamp_(max=f32(rounding.E4M3_MAX, device)))
        # The stored, rounded scale divides, as a multiplication by its fp32 reciprocal: |x / s| may pass 6.
        top = f32(rounding.E2M1_MAX, device)
        return (grouped * scale.reciprocal()).clamp_(f32(-rounding.E2M1_MAX, device), top), scale
    if sf == "f32":
        top = f32(_TOPS[fmt], device)
        amax = amax.clamp_(min=f32(_FLOORS[fmt], device))
        # Tensor over tensor: a Python number over a tensor would be its reciprocal, rounded, times the number.
        return (grouped * (top / amax)).clamp_(f32(-_TOPS[fmt], device), top), amax / top
    raise ValueError(f"scales of {fmt} as {sf}")  # check_cast has seen to it


def dequantize(q: Quantised, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The values of ``q`` as ``dtype``."""
    values: Tensor = q.values
    return values.to(dtype)


def dequantize_weight(name: str, w: Tensor, sf: Tensor | None) -> Tensor:
    """A checkpoint weight as fp32 ``[out, in]`` (``spec/model.md`` 3): E4M3 with 32x32 E8M0 blocks, packed E2M1 with
    E8M0 groups of 32 along the inputs, or a plain float tensor without ``sf``.

    :raises ShapeContractError: the scale grid does not belong to the weight (a transposed one is refused, also where
        the weight is square: shapes are compared exactly and only a square grid could pass for its own transpose).
    """
    if sf is None:
        if not w.dtype.is_floating_point or w.element_size() == 1:
            raise shape_error("quant.prepare_weight", name, "a scale tensor beside a quantised weight", w.dtype)
        return w.float()
    codes = sf.view(torch.uint8)
    if w.dtype == torch.float8_e4m3fn:
        rows, columns = w.shape
        expected = (-(-rows // WEIGHT_BLOCK), -(-columns // WEIGHT_BLOCK))
        _check_scale_grid(name, codes, expected)
        scale = rounding.decode_e8m0(codes)
        scale = scale.repeat_interleave(WEIGHT_BLOCK, 0)[:rows].repeat_interleave(WEIGHT_BLOCK, 1)[:, :columns]
        return rounding.decode_e4m3(w.view(torch.uint8)) * scale
    if w.dtype in (torch.int8, torch.uint8):
        values = rounding.decode_e2m1(w.view(torch.uint8))
        rows, columns = values.shape
        _check_scale_grid(name, codes, (rows, -(-columns // WEIGHT_BLOCK)))
        scale = rounding.decode_e8m0(codes).repeat_interleave(WEIGHT_BLOCK, 1)[:, :columns]
        return values * scale
    raise shape_error("quant.prepare_weight", name, "E4M3, packed E2M1 (int8) or a float weight", w.dtype)


def _check_scale_grid(name: str, codes: Tensor, expected: tuple[int, int]) -> None:
    if tuple(codes.shape) != expected:
        raise shape_error("quant.prepare_weight", f"scale of {name}", f"of shape {expected}", tuple(codes.shape))


def prepare_weight(
    name: str,
    w: Weights | Sequence[Weights],
    sf: Scales | Sequence[Scales] = None,
    *,
    use: str = "dense",
) -> PreparedWeight:
    """Dequantise once, at load time, to fp32 ``[in, out]``.

    :param w: one weight ``[out, in]``; or a list, concatenated along the outputs; for ``use="experts"`` a list with one
        entry (a weight or a list to concatenate) for each expert.
    :param sf: the scales, nested like ``w``.
    :param use: ``dense`` (``gemm.dense``), ``experts`` (``moe.experts``, ``gemm.grouped``: a stack ``[E, in, out]``) or
        ``heads:G`` (``gemm.einsum_heads``: ``[G * out, in]`` rows, group-major).
    :raises ShapeContractError: a scale grid or a shape does not fit.
    """
    if use == "experts":
        scales = [None] * len(w) if sf is None else sf
        _check_nesting(name, w, scales)
        stack = [_concatenate(f"{name}[{i}]", cast(Weights, item), scales[i])[0] for i, item in enumerate(w)]
        if len({m.shape for m in stack}) > 1:
            raise shape_error("quant.prepare_weight", name, "experts of one shape", [list(m.shape) for m in stack])
        return PreparedWeight(name=name, use=use, matrix=torch.stack([m.t() for m in stack]).contiguous())
    full, parts = _concatenate(name, cast(Weights, w), cast(Scales, sf))
    if use == "dense":
        return PreparedWeight(name=name, use=use, matrix=full.t().contiguous(), parts=parts)
    if use.startswith("heads:"):
        groups = int(use.removeprefix("heads:")) if use.removeprefix("heads:").isdecimal() else 0
        if groups < 1:
            raise shape_error("quant.prepare_weight", "use", "heads:G with a number of groups G", use)
        if full.shape[0] % groups:
            raise shape_error("quant.prepare_weight", name, f"outputs divisible by {groups} groups", full.shape[0])
        matrix = full.view(groups, full.shape[0] // groups, full.shape[1]).transpose(1, 2).contiguous()
        return PreparedWeight(name=name, use=use, matrix=matrix)
    raise shape_error("quant.prepare_weight", "use", "dense, experts or heads:G", use)


def _concatenate(name: str, w: Weights, sf: Scales) -> tuple[Tensor, tuple[int, ...]]:
    if isinstance(w, Tensor):
        full = dequantize_weight(name, w, cast("Tensor | None", sf))
        return full, (full.shape[0],)
    scales = [None] * len(w) if sf is None else sf
    _check_nesting(name, w, scales)
    pieces = [dequantize_weight(name, item, scale) for item, scale in zip(w, scales, strict=True)]
    return torch.cat(pieces), tuple(p.shape[0] for p in pieces)


def _check_nesting(name: str, w: Sequence[Weights], scales: Sequence[Scales]) -> None:
    if not w or len(scales) != len(w):
        raise shape_error("quant.prepare_weight", f"scales of {name}", f"one for each of {len(w)} weights", len(scales))
