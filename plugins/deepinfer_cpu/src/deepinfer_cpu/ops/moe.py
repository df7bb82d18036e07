"""Mixture of experts on one rank: gate, dispatch, experts, combine (``spec/model.md`` 2.9, ``spec/kernels.md`` 2.7)."""

from __future__ import annotations

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from deepinfer_core.errors import UnsupportedFeature
from deepinfer_cpu.contracts import FLOATS, check_floats, check_like, shape_error
from deepinfer_cpu.ops.gemm import of_groups, operand, product
from deepinfer_cpu.ops.quant import cast_per_token, check_cast
from deepinfer_cpu.scalars import f32, is_host
from deepinfer_cpu.tensors import PreparedWeight, Quantised, Weight

CAST = ("e4m3", 32, "ue8m0")
_LINEAR_ABOVE = np.float32(20.0)


@frozen(eq=False)
class Handle:
    """What combine needs of a dispatch: row of each (token, choice) in ascending expert id, -1 for a masked one."""

    rows: Tensor
    tokens: int
    sent: int
    masked: bool
    dtype: torch.dtype


@frozen(eq=False)
class Dispatched:
    """Rows sorted by (expert, token).

    :ivar segments: (expert, begin, end) of each expert that has rows, where the host knows them.
    :ivar expert: int64 ``[M]``, expert of each row, where only the device does; then M is tokens times k, the rows of
        masked choices come last, with weight 0 and an expert that does not exist.
    """

    x: Tensor
    weight: Tensor
    segments: tuple[tuple[int, int, int], ...]
    handle: Handle
    expert: Tensor | None = None


_NO_EXPERT = 1 << 31


def sqrt_softplus(logits: Tensor) -> Tensor:
    """``sqrt(softplus(z))`` in fp32, softplus(z) = z above 20."""
    if not is_host(logits):
        # Twice as precise and rounded: the same but for rare last bits, and no step that a device computes coarsely.
        z64 = logits.double()
        return torch.where(z64 > 20.0, z64, z64.clamp(max=20.0).exp_().log1p_()).sqrt_().float()
    z = logits.numpy()
    # NumPy's log1p and exp give an element the same bits wherever it stands; torch's softplus does not.
    soft = np.log1p(np.exp(np.minimum(z, _LINEAR_ABOVE)))
    return torch.from_numpy(np.sqrt(np.where(z > _LINEAR_ABOVE, z, soft)))


def gate(
    x: Tensor,
    w: Weight,
    bias: Tensor,
    *,
    k: int,
    scale: float,
    temperature: float = 1.0,
    bias_image: Tensor | None = None,
    image_rows: Tensor | None = None,
    mask: Tensor | None = None,
    force_random: Tensor | None = None,
    placement: object | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose ``k`` experts a token: the best of score + bias, lower id first among equals.

    :param x: ``[T, H]``; ``w`` ``[H, E]``; ``bias`` fp32 ``[E]``, or ``bias_image`` on rows where ``image_rows``.
    :param mask: bool ``[T]``, False gives ids -1 and weights 0.
    :returns: int64 ``[T, k]`` in order of choice, and fp32 weights: scores over their sum, times ``scale``.
    :raises UnsupportedFeature: ``force_random`` or ``placement`` (expert replicas) is asked for.
    """
    if placement is not None or force_random is not None:
        raise UnsupportedFeature(
            "moe.gate: expert replicas and forced random routing are not offered",
            reason="both serve load balancing over several devices, and an engine runs on one",
            remedy="leave 'placement' and 'force_random' unset",
        )
    _check_gate(x, w, bias, k, temperature, bias_image, image_rows, mask)
    logits = product(x if x.dtype == torch.float32 else x.float(), w.matrix)
    if temperature != 1.0:
        logits = logits / f32(temperature, x.device)
    scores = sqrt_softplus(logits)
    ranked = scores + bias
    if image_rows is not None and bias_image is not None:
        ranked = torch.where(image_rows.unsqueeze(1), scores + bias_image, ranked)
    idx = ranked.sort(dim=1, descending=True, stable=True).indices[:, :k]
    chosen = scores.gather(1, idx)
    weight = chosen.div_(chosen.sum(1, keepdim=True).add_(f32(1e-20, x.device))).mul_(f32(scale, x.device))
    if mask is not None:
        off = ~mask.unsqueeze(1)
        idx, weight = idx.masked_fill(off, -1), weight.masked_fill_(off, 0.0)
    return idx, weight


def _check_gate(
    x: Tensor,
    w: Weight,
    bias: Tensor,
    k: int,
    temperature: float,
    bias_image: Tensor | None,
    image_rows: Tensor | None,
    mask: Tensor | None,
) -> None:
    check_floats("moe.gate", "x", x, 2)
    hidden, experts = w.shape
    if x.shape[1] != hidden:
        raise shape_error("moe.gate", "x", f"[T, {hidden}]", list(x.shape))
    if not 1 <= k <= experts or temperature <= 0.0:
        raise shape_error("moe.gate", "k, temperature", f"1 to {experts} and above 0", (k, temperature))
    check_like("moe.gate", "bias", bias, (experts,), torch.float32)
    if mask is not None:
        check_like("moe.gate", "mask", mask, x.shape[:1], torch.bool)
    if image_rows is not None:
        check_like("moe.gate", "image_rows", image_rows, x.shape[:1], torch.bool)
        if bias_image is None:
            raise shape_error("moe.gate", "bias_image", "given with image_rows", None)
        check_like("moe.gate", "bias_image", bias_image, (experts,), torch.float32)


def dispatch(
    x: Tensor | Quantised, idx: Tensor, weight: Tensor, *, group: object | None = None, align: int = 1
) -> Dispatched:
    """Sort (token, choice) pairs by expert, tokens in order. ``x`` ``[T, H]``, ``idx`` int64 ``[T, k]`` (-1 masked).

    :raises UnsupportedFeature: ``group`` names more than this rank.
    """
    if group is not None:
        raise UnsupportedFeature(
            "moe.dispatch: expert groups over several devices are not offered",
            reason="an engine runs on one device, and the op has no exchange between ranks",
            remedy="leave 'group' unset, and run with --ep 1",
        )
    if idx.shape != weight.shape or not x.shape or idx.shape[:1] != x.shape[:1]:
        raise shape_error("moe.dispatch", "idx, weight", f"[{x.shape[0]}, k] both", (idx.shape, weight.shape))
    values, dtype = operand("moe.dispatch", x)
    if values.dim() != 2 or idx.dim() != 2 or idx.dtype != torch.int64 or weight.dtype != torch.float32 or align < 1:
        expected = "x [T, H], int64 idx [T, k], fp32 weight [T, k], align >= 1"
        got = (list(values.shape), idx.dtype, list(idx.shape), weight.dtype, align)
        raise shape_error("moe.dispatch", "x, idx, weight, align", expected, got)
    tokens, k = idx.shape
    if not is_host(idx):
        return _dispatch_on_device(values, idx, weight, dtype)
    flat = idx.numpy().reshape(-1)
    order = flat.argsort(kind="stable")
    masked = int(np.count_nonzero(flat < 0))
    segments, begin = [], 0
    for expert, count in enumerate(np.bincount(flat + 1)[1:].tolist()):
        if count:
            segments.append((expert, begin, begin + count))
            begin += count
    order = order[masked:]
    rows = np.full((tokens, k), -1, dtype=np.int64)
    rows.reshape(-1)[order] = np.arange(len(order))
    rows.sort(axis=1)  # ascending row = ascending expert id
    handle = Handle(rows=torch.from_numpy(rows), tokens=tokens, sent=len(order), masked=masked > 0, dtype=dtype)
    chosen = values.index_select(0, torch.from_numpy(order // k))
    sorted_weight = weight.reshape(-1).index_select(0, torch.from_numpy(order))
    return Dispatched(x=chosen, weight=sorted_weight, segments=tuple(segments), handle=handle)


def _dispatch_on_device(values: Tensor, idx: Tensor, weight: Tensor, dtype: torch.dtype) -> Dispatched:
    """The same with a row for every choice: the host does not know how many are masked."""
    tokens, k = idx.shape
    expert, order = torch.sort(idx.reshape(-1).masked_fill(idx.reshape(-1) < 0, _NO_EXPERT), stable=True)
    rows = torch.empty_like(order).scatter_(0, order, torch.arange(tokens * k, device=idx.device))
    rows = rows.masked_fill_(idx.reshape(-1) < 0, -1).view(tokens, k).sort(dim=1).values
    handle = Handle(rows=rows, tokens=tokens, sent=tokens * k, masked=True, dtype=dtype)
    chosen = values.index_select(0, order.div(max(k, 1), rounding_mode="floor"))
    weight = weight.reshape(-1).index_select(0, order).masked_fill_(expert == _NO_EXPERT, 0.0)
    return Dispatched(chosen, weight, (), handle, expert)


def swiglu(
    x: Tensor,
    *,
    clamp: float,
    weight: Tensor | None = None,
    cast: tuple[str, int, str] | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor | Quantised:
    """``silu(min(g, clamp)) * clip(u, -clamp, clamp) * weight`` of ``x`` = [g | u] ``[T, 2I]``, fp32, one rounding.

    :param clamp: 0 turns the limits off. :param weight: fp32 ``[T]``.
    :param cast: quantise the rounded result. :param dtype: None keeps that of ``x``.
    """
    check_floats("moe.swiglu", "x", x, 2)
    half = x.shape[-1] // 2
    if x.shape[-1] % 2 or clamp < 0.0 or (dtype is not None and dtype not in FLOATS):
        expected, got = "an even width, clamp >= 0, bf16 or fp32", (list(x.shape), clamp, dtype)
        raise shape_error("moe.swiglu", "x, clamp, dtype", expected, got)
    if weight is not None:
        check_like("moe.swiglu", "weight", weight, x.shape[:-1], torch.float32)
    if cast is not None:
        check_cast("moe.swiglu", half, *cast)
    xf = x if x.dtype == torch.float32 else x.float()
    g, u = torch.split(xf, half, -1)
    if clamp:
        limit = f32(clamp, x.device)
        g, u = g.clamp(max=limit), u.clamp(f32(-clamp, x.device), limit)
    # Not torch's silu: its last elements in a vector take another exp, so bits would depend on the position.
    y = (g / g.neg().exp_().add_(f32(1.0, x.device))).mul_(u)
    if weight is not None:
        y.mul_(weight.unsqueeze(-1))
    y = y.to(x.dtype if dtype is None else dtype)
    return y if cast is None else cast_per_token(y, fmt=cast[0], group=cast[1], sf=cast[2])


def experts(
    d: Dispatched,
    w1: Weight,
    w2: Weight,
    *,
    clamp: float,
    cast: tuple[str, int, str] | None = CAST,
) -> Tensor:
    """Rows of ``d`` through their experts: gate|up, SwiGLU times the routing weight, quantise, down.

    ``w1`` is a stack ``[E, H, 2I]`` (gate columns, then up), ``w2`` ``[E, I, H]``. ``cast`` None leaves the hidden
    values unquantised (mode ``exact``).

    :returns: ``[M, H]`` in the dtype of the dispatched tokens.
    """
    if w1.matrix.shape[1] != d.x.shape[1] or w2.matrix.shape[1] * 2 != w1.matrix.shape[2]:
        raise shape_error("moe.experts", "w1, w2", f"[E, {d.x.shape[1]}, 2I], [E, I, H]", (w1.shape, w2.shape))
    up = _by_expert(d.x, w1, d)
    if d.handle.dtype != torch.float32:
        up = up.to(d.handle.dtype)
    hidden, _ = operand("moe.experts", swiglu(up, clamp=clamp, weight=d.weight, cast=cast))
    return _by_expert(hidden, w2, d).to(d.handle.dtype)


def _by_expert(x: Tensor, w: Weight, d: Dispatched) -> Tensor:
    if d.expert is not None:
        return of_groups(x, w.matrix, d.expert)
    return _segments(x, w, d.segments)


def _segments(x: Tensor, w: Weight, segments: tuple[tuple[int, int, int], ...]) -> Tensor:
    """Each expert's rows times its matrix, in order: ``[M, in]`` -> ``[M, out]``."""
    parts = []
    rows, matrix = x.shape[0], w.slices if isinstance(w, PreparedWeight) else w.matrix
    for expert, begin, end in segments:
        if end - begin == 1 and rows > 1:
            # Two rows keep the bits of a product independent of its row count (gemm.py); a neighbour is the second.
            first = min(begin, rows - 2)
            both = product(x.narrow(0, first, 2), matrix[expert])
            parts.append(both.narrow(0, begin - first, 1))
        else:
            parts.append(product(x.narrow(0, begin, end - begin), matrix[expert]))
    if not parts:
        return x.new_zeros(0, w.matrix.shape[2])
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def combine(y: Tensor, handle: Handle, *, bias: Tensor | None = None) -> Tensor:
    """Sum each token's expert rows in fp32 in ascending expert id, then ``bias`` ``[T, H]`` (the shared expert's
    output); one rounding to the dtype of the dispatched tokens."""
    check_floats("moe.combine", "y", y, 2)
    if y.shape[0] != handle.sent:
        raise shape_error("moe.combine", "y", f"[{handle.sent}, H], one row for each sent", list(y.shape))
    if bias is not None:
        check_like("moe.combine", "bias", bias, (handle.tokens, y.shape[1]), *FLOATS)
    yf = y if y.dtype == torch.float32 else y.float()
    rows = handle.rows
    if handle.masked:
        yf = torch.cat([yf, yf.new_zeros(1, yf.shape[1])])  # row -1: adds nothing
        rows = rows.masked_fill(rows < 0, yf.shape[0] - 1)
    picked = yf.index_select(0, rows.view(-1)).view(handle.tokens, rows.shape[1], yf.shape[1])
    total = picked[:, 0]
    for choice in range(1, rows.shape[1]):
        total = total + picked[:, choice]
    if bias is not None:
        total = total + bias
    return total.to(handle.dtype)
