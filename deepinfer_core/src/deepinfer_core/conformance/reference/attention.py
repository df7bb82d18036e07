"""Attention over listed keys, one row after the other in fp64 (``spec/model.md`` 2.5, ``spec/kernels.md`` 2.9a)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from deepinfer_core.conformance.reference import formats, transform


def listed(indices: Sequence[int], length: int | None, bound: int) -> list[int]:
    """The indices that count: in the first ``length`` columns, not negative, below ``bound``."""
    return [i for i in indices[:length] if 0 <= i < bound]


def attend(q: Tensor, keys: Tensor, scale: float, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """``q`` fp64 ``[h, D]`` over ``keys`` fp64 ``[n, D]``, values too -> out ``[h, D]`` and lse ``[h]``, both fp64.

    The sink adds exp(sink) to the denominator and nothing else; lse does not know it. Without keys: 0 and +inf.
    """
    if not len(keys):
        return torch.zeros_like(q), torch.full(q.shape[:1], math.inf, dtype=torch.float64)
    scores = q @ keys.T * scale
    top = scores.amax(1, keepdim=True)
    weights = (scores - top).exp()
    total = weights.sum(1, keepdim=True)
    lse = (top + total.log()).squeeze(1)
    denominator = total if sink is None else total + (sink.double().unsqueeze(1) - top).exp()
    return weights @ keys / denominator, lse


def attend_rows(q: Tensor, keys: Sequence[Tensor], scale: float, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """``q`` ``[T, h, D]``, each row with keys of its own -> fp64 out ``[T, h, D]`` and lse ``[T, h]``."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    lse = torch.zeros(q.shape[:2], dtype=torch.float64)
    for t, own in enumerate(keys):
        out[t], lse[t] = attend(q[t].double(), own, scale, sink)
    return out, lse


def fused_rows(
    q: Tensor,
    keys: Sequence[Tensor],
    scale: float,
    sink: Tensor | None,
    *,
    norm: tuple[Tensor, float] | None,
    cos_sin: Tensor,
    positions: Tensor,
    groups: int,
) -> Tensor:
    """Norm and rotation of the query, attention, inverse rotation: fp64 ``[T, groups, h * D / groups]``, not cast."""
    y = q.double()
    if norm is not None:
        y = y * torch.rsqrt((y * y).mean(-1, keepdim=True) + norm[1]) * norm[0].double()
    y = transform.rotary(formats.rounded(y, q.dtype).to(q.dtype), cos_sin, positions, False)
    out, _ = attend_rows(y, keys, scale, sink)
    out = transform.rotary(out.to(q.dtype), cos_sin, positions, True)
    return out.double().reshape(q.shape[0], groups, -1)
