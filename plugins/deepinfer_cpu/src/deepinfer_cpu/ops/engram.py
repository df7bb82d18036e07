"""Engram: n-gram hashing, table rows, gated addition (``spec/model.md`` 2.3)."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from deepinfer_cpu import rounding
from deepinfer_cpu.contracts import FLOATS, INTEGERS, check_floats, check_like, shape_error
from deepinfer_cpu.ops.norm import inverse_rms
from deepinfer_cpu.scalars import f32

GATE_FLOOR = 1e-6


@frozen(eq=False)
class Table:
    """One layer's table: E4M3 codes ``[rows, d]`` and E8M0 scales ``[rows, d / 32]``, as bytes; or float rows alone."""

    codes: Tensor
    scales: Tensor | None


def prepare(weight: Tensor, scale: Tensor | None = None) -> Table:
    """A table from checkpoint tensors, shared, not copied: FP8 ``[rows, d]`` with E8M0 ``[rows, d / 32]``, or bf16 or
    fp32 rows without scales."""
    if scale is None:
        if weight.dim() != 2 or weight.dtype not in FLOATS:
            raise shape_error("engram.prepare", "scale", "given with a quantised table", None)
        return Table(weight, None)
    if weight.element_size() != 1:
        raise shape_error("engram.prepare", "weight", "of FP8 beside scales", weight.dtype)
    if weight.dim() != 2:
        raise shape_error("engram.prepare", "weight", "[rows, d]", list(weight.shape))
    check_like("engram.prepare", "scale", scale, (weight.shape[0], weight.shape[1] // 32))
    return Table(weight.view(torch.uint8), scale.view(torch.uint8))


@frozen(eq=False)
class GateParams:
    """The product of the two norm weights, fp32 ``[c, H]``, and the eps of both norms."""

    weight: Tensor
    norm_eps: float


def prepare_gate(q_weight: Tensor, k_weight: Tensor, *, norm_eps: float = 1e-20) -> GateParams:
    """Norm weights of streams and keys ``[c, H]``, once at load."""
    if q_weight.dim() != 2 or q_weight.shape != k_weight.shape:
        got = (list(q_weight.shape), list(k_weight.shape))
        raise shape_error("engram.prepare_gate", "q_weight, k_weight", "[c, H] both", got)
    return GateParams(q_weight.float() * k_weight.float(), norm_eps)


def hash(ids: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """Table rows of each n-gram: int64 ``[T, columns]``.

    :param ids: ``[T, G]``, column r the compressed id of the token r places back.
    :param multipliers: int64 ``[G]``; ``primes``, ``offsets`` int64 ``[columns]``, n-gram order major, then head.
    """
    if ids.dim() != 2 or ids.dtype not in INTEGERS:
        raise shape_error("engram.hash", "ids", "int32 or int64 [T, G]", (ids.dtype, list(ids.shape)))
    if {multipliers.dtype, primes.dtype, offsets.dtype} != {torch.int64} or offsets.shape != primes.shape:
        got = (multipliers.dtype, primes.dtype, list(primes.shape), offsets.dtype, list(offsets.shape))
        raise shape_error("engram.hash", "multipliers, primes, offsets", "int64, two of one shape", got)
    orders = ids.shape[1] - 1
    if multipliers.shape[0] != ids.shape[1] or not orders or primes.shape[0] % orders:
        raise shape_error("engram.hash", "ids", f"[T, {multipliers.shape[0]}]", list(ids.shape))
    terms = ids.long() * multipliers
    value = terms[:, 0]
    values = []
    for n in range(1, ids.shape[1]):
        value = value ^ terms[:, n]
        values.append(value)
    hashed = torch.stack(values, dim=1).unsqueeze(2)
    heads = primes.shape[0] // orders
    return (hashed % primes.view(orders, heads) + offsets.view(orders, heads)).flatten(1)


def fetch(rows: Tensor, table: Table, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Dequantised rows side by side: ``[T, columns]`` -> ``[T, columns * d]``."""
    if rows.dim() != 2 or rows.dtype not in INTEGERS or dtype not in FLOATS:
        expected, got = "int32 or int64 [T, columns], as bf16 or fp32", (rows.dtype, list(rows.shape), dtype)
        raise shape_error("engram.fetch", "rows, dtype", expected, got)
    flat, width = rows.reshape(-1), rows.shape[1] * table.codes.shape[1]
    if table.scales is None:
        return table.codes.index_select(0, flat).view(rows.shape[0], width).to(dtype)
    values = rounding.decode_e4m3(table.codes.index_select(0, flat))
    scales = rounding.decode_e8m0(table.scales.index_select(0, flat))
    values = values.view(*scales.shape, 32).mul_(scales.unsqueeze(-1))
    return values.view(rows.shape[0], width).to(dtype)


def gate(x: Tensor, kv: Tensor, params: GateParams, *, mask: Tensor | None = None) -> Tensor:
    """``X_j + g_j v``, g from the normalised dot product of stream and key; ``[T, c, H]`` in the dtype of ``x``.

    :param kv: ``[T, (c + 1) * H]``: c keys, stream-major, then the shared value.
    :param params: of :func:`prepare_gate`. :param mask: bool ``[T]``, False (an image row) leaves the row as it is.
    """
    check_floats("engram.gate", "x", x, 3)
    tokens, c, width = x.shape
    check_like("engram.gate", "x", x, (tokens, *params.weight.shape))
    if mask is not None:
        check_like("engram.gate", "mask", mask, (tokens,), torch.bool)
    check_floats("engram.gate", "kv", kv)
    if kv.shape != (tokens, (c + 1) * width):
        raise shape_error("engram.gate", "kv", f"[{tokens}, {(c + 1) * width}]", list(kv.shape))
    xf, kvf = x.float(), kv.float()
    keys, value = kvf[:, : c * width].view(tokens, c, width), kvf[:, c * width :].unsqueeze(1)
    dot = (xf * params.weight).mul_(keys).sum(-1, keepdim=True)
    dot.mul_(inverse_rms(xf, params.norm_eps)).mul_(inverse_rms(keys, params.norm_eps)).mul_(f32(width**-0.5, x.device))
    g = gate_of(dot)
    if mask is not None:
        g = g * mask.view(-1, 1, 1)
    return torch.addcmul(xf, g, value).to(x.dtype)


def gate_of(dot: Tensor) -> Tensor:
    """``sigmoid(sign(d) * sqrt(max(|d|, 1e-6)))``, the sign of a zero counting as a sign."""
    root = torch.copysign(dot.abs().clamp_(min=f32(GATE_FLOOR, dot.device)).sqrt_(), dot)
    return root.neg_().exp_().add_(f32(1.0, dot.device)).reciprocal_()
