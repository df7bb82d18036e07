"""Sparse attention: one softmax over window and compressed keys (``spec/model.md`` 2.5, ``spec/kernels.md`` 2.9a).

Keys are values too. Scores and sums are fp32 in two passes; the un-normalised probabilities are rounded to bf16 before
the second product when the query is bf16 (``round_probs``). The sink adds exp(sink - max) to the denominator only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from attrs import frozen
from torch import Tensor

from deepinfer_cpu.caches import CacheView
from deepinfer_cpu.contracts import INTEGERS, check_like, shape_error
from deepinfer_cpu.ops import cache
from deepinfer_cpu.scalars import f32, is_host

GATHER_VALUES = 1 << 22
"""Values of gathered keys held at once; more rows are done in turns."""


@frozen
class Plan:
    """Decode plan: this backend needs none, the object records what it was asked for."""

    shapes: Mapping[str, int] | None = None
    batch_invariant: bool = False


def plan(shapes: Mapping[str, int] | None = None, *, batch_invariant: bool = False) -> Plan:
    """A plan for decode steps of ``shapes``. Always batch invariant here: rows never meet."""
    return Plan(shapes, batch_invariant)


def sparse_prefill(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    *,
    scale: float,
    sink: Tensor | None = None,
    lengths: Tensor | None = None,
    round_probs: bool | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of ``q`` ``[T, h, D]`` over rows of ``kv`` ``[S, D]`` named by ``indices`` int32 ``[T, k]``.

    An index of -1 or >= S is invalid; a key listed twice counts twice.

    :param sink: fp32 ``[h]``. :param lengths: int32 ``[T]``, columns at or past it are invalid.
    :returns: out ``[T, h, D]`` in the dtype of ``q`` and lse fp32 ``[T, h]`` (natural log, without sink, +inf when no
        key is valid; such a row of ``out`` is 0).
    """
    _check("attn.sparse_prefill", q, indices, lengths)
    _check_heads("attn.sparse_prefill", q, sink, out)
    if kv.dim() != 2 or kv.shape[1] != q.shape[2]:
        raise shape_error("attn.sparse_prefill", "kv", f"[S, {q.shape[2]}]", list(kv.shape))
    if round_probs is None:
        round_probs = q.dtype != torch.float32
    keys = kv.float()
    where = indices
    valid = (where >= 0) & (where < kv.shape[0])
    if lengths is not None:
        valid &= torch.arange(where.shape[1], device=q.device) < lengths.unsqueeze(1)
    result = torch.empty_like(q) if out is None else out
    lse = torch.empty(q.shape[:2], device=q.device)
    if not kv.shape[0] or not where.shape[1]:
        return result.zero_(), lse.fill_(math.inf)
    where = where.masked_fill(~valid, 0)
    step = max(1, GATHER_VALUES // max(1, where.shape[1] * q.shape[2]))
    for begin in range(0, q.shape[0], step):
        rows = slice(begin, begin + step)
        chosen = keys.index_select(0, where[rows].reshape(-1))
        chosen = chosen.view(-1, where.shape[1], q.shape[2])
        result[rows], lse[rows] = softmax_rows(q[rows], chosen, valid[rows], scale, sink, round_probs)
    return result, lse


def sparse_decode(
    q: Tensor,
    window: CacheView,
    idx: Tensor,
    *,
    plan: Plan | None = None,
    scale: float,
    sink: Tensor | None = None,
    lengths: Tensor | None = None,
    extra: CacheView | None = None,
    extra_idx: Tensor | None = None,
    extra_lengths: Tensor | None = None,
    round_probs: bool | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As :func:`sparse_prefill`, with keys read from caches.

    ``idx`` int32 ``[T, k1]`` are physical slots of ``window``, ``extra_idx`` ``[T, k2]`` of ``extra``; -1 is invalid.
    Only the rows that are asked for are dequantised.
    """
    _check("attn.sparse_decode", q, idx, lengths)
    _check_heads("attn.sparse_decode", q, sink, out)
    if window.width != q.shape[2]:
        raise shape_error("attn.sparse_decode", "window", f"entries of {q.shape[2]} values", window.width)
    if round_probs is None:
        round_probs = q.dtype != torch.float32
    sources = [(window, idx, lengths)]
    if (extra is None) != (extra_idx is None):
        raise shape_error("attn.sparse_decode", "extra, extra_idx", "given together", (extra, extra_idx))
    if extra is not None and extra_idx is not None:
        _check("attn.sparse_decode", q, extra_idx, extra_lengths)
        if extra.width != window.width:
            raise shape_error("attn.sparse_decode", "extra", f"entries of {window.width} values", extra.width)
        sources.append((extra, extra_idx, extra_lengths))
    total = sum(where.shape[1] for _, where, _ in sources)
    step = max(1, GATHER_VALUES // max(1, total * q.shape[2]))
    if q.shape[0] <= step:
        keys, valid = _gather(sources, slice(None))
        result, lse = softmax_rows(q, keys, valid, scale, sink, round_probs)
        return (result if out is None else out.copy_(result)), lse
    result = torch.empty_like(q) if out is None else out
    lse = torch.empty(q.shape[:2], device=q.device)
    for begin in range(0, q.shape[0], step):
        rows = slice(begin, begin + step)
        keys, valid = _gather(sources, rows)
        result[rows], lse[rows] = softmax_rows(q[rows], keys, valid, scale, sink, round_probs)
    return result, lse


def _check(op: str, q: Tensor, indices: Tensor, lengths: Tensor | None) -> None:
    if q.dim() != 3:
        raise shape_error(op, "q", "[T, heads, D]", list(q.shape))
    if indices.dim() != 2 or indices.shape[0] != q.shape[0]:
        raise shape_error(op, "indices", f"[{q.shape[0]}, k]", list(indices.shape))
    if indices.dtype not in INTEGERS:
        raise shape_error(op, "indices", "integers", indices.dtype)
    if lengths is not None:
        check_like(op, "lengths", lengths, q.shape[:1], *INTEGERS)


def _check_heads(op: str, q: Tensor, sink: Tensor | None, out: Tensor | None) -> None:
    if sink is not None:
        check_like(op, "sink", sink, q.shape[1:2])
    if out is not None:
        check_like(op, "out", out, q.shape, q.dtype)


def _gather(sources: list[tuple[CacheView, Tensor, Tensor | None]], rows: slice) -> tuple[Tensor, Tensor]:
    """Keys fp32 ``[T, k, D]`` of all sources side by side, and which are valid ``[T, k]``."""
    keys, masks = [], []
    for view, where, lengths in sources:
        where = where[rows]
        valid = where >= 0
        if lengths is not None:
            valid &= torch.arange(where.shape[1], device=where.device) < lengths[rows].unsqueeze(1)
        found = cache.gather(view, where.clamp(min=0).reshape(-1))
        keys.append(found.view(*where.shape, view.width))
        masks.append(valid)
    if len(keys) == 1:
        return keys[0], masks[0]
    return torch.cat(keys, dim=1), torch.cat(masks, dim=1)


def softmax_rows(
    q: Tensor,
    keys: Tensor,
    valid: Tensor,
    scale: float,
    sink: Tensor | None,
    round_probs: bool,
) -> tuple[Tensor, Tensor]:
    """``q`` ``[T, h, D]`` over each row's own fp32 ``keys`` ``[T, k, D]`` (changed in place where invalid)."""
    qf = q if q.dtype == torch.float32 else q.float()
    # a device is not asked: there the general path runs; no columns at all are no valid key
    full = is_host(valid) and valid.shape[1] > 0 and bool(valid.all())
    if not full:
        absent = ~valid
        keys.masked_fill_(absent.unsqueeze(-1), 0.0)  # a stale key may hold NaN, and 0 * NaN is NaN
    scores = torch.bmm(qf, keys.transpose(1, 2)).mul_(f32(scale, q.device))
    if not full:
        scores.masked_fill_(absent.unsqueeze(1), -math.inf)
    top = scores.amax(-1, keepdim=True) if keys.shape[1] else scores.new_full((*q.shape[:2], 1), -math.inf)
    top = top.clamp_(min=f32(-1e30, q.device))
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    if round_probs:
        weights = weights.bfloat16().float()
    mixed = torch.bmm(weights, keys)
    lse = torch.log(total).add_(top).squeeze(-1)
    if not full:
        lse = lse.masked_fill_(total.squeeze(-1) == 0, math.inf)
    denominator = total if sink is None else total + (sink.view(1, -1, 1) - top).exp_()
    # The largest key contributes exp(0) = 1, so only a row without keys is below 1: it divides 0.
    return mixed.div_(denominator.clamp_(min=f32(1.0, q.device))).to(q.dtype), lse
