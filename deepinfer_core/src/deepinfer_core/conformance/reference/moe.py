"""Mixture of experts, token by token and expert by expert (``spec/model.md`` 2.9)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from deepinfer_core.conformance.reference import formats


def score(logit: float) -> float:
    """``sqrt(softplus(z))``, softplus(z) = z above 20."""
    return math.sqrt(logit if logit > 20 else math.log1p(math.exp(logit)))


def scores(x: Tensor, w: Tensor, temperature: float = 1.0) -> Tensor:
    """fp64 ``[T, E]`` of ``x`` ``[T, H]`` and ``w`` ``[E, H]``."""
    logits = (x.double() @ w.double().t() / temperature).tolist()
    return torch.tensor([[score(z) for z in row] for row in logits], dtype=torch.float64).view(x.shape[0], w.shape[0])


def choose(plain: Tensor, bias: Tensor, k: int) -> Tensor:
    """int64 ``[T, k]``: the best of ``plain`` + ``bias`` (``[E]`` or ``[T, E]``, fp64), ties to the lower id."""
    ranked = (plain + bias.double()).tolist()
    chosen = [[e for _, e in sorted((-value, e) for e, value in enumerate(row))[:k]] for row in ranked]
    return torch.tensor(chosen, dtype=torch.int64).view(plain.shape[0], k)


def weights(plain: Tensor, chosen: Tensor, scale: float) -> Tensor:
    """fp64 ``[T, k]``: scores without any bias over their sum, times ``scale``; 0 for id -1."""
    picked = plain.gather(1, chosen.clamp(min=0)).masked_fill(chosen < 0, 0.0)
    return scale * picked / (picked.sum(1, keepdim=True) + 1e-20)


def swiglu(x: Tensor, clamp: float, weight: Tensor | None = None) -> Tensor:
    """``silu(min(g, clamp)) * clip(u, +-clamp) * weight`` of ``[g | u]``, fp64, unrounded; clamp 0: no limits."""
    g, u = x.double().chunk(2, dim=-1)
    if clamp:
        g, u = g.clamp(max=clamp), u.clamp(-clamp, clamp)
    y = g / (1 + (-g).exp()) * u
    return y if weight is None else y * weight.double().unsqueeze(-1)


def expert(
    x: Tensor, weight: Tensor, w1: Tensor, w2: Tensor, clamp: float, cast: tuple[str, int, str] | None
) -> Tensor:
    """Rows ``x`` ``[M, H]`` through one expert: ``w1`` ``[2I, H]`` (gate, then up), ``w2`` ``[H, I]``; fp64.

    With ``cast`` every stage is rounded to bf16 as in mode ``released``, without it nothing is.
    """
    up = x.double() @ w1.double().t()
    if cast is None:
        return swiglu(up, clamp, weight) @ w2.double().t()
    hidden = swiglu(formats.rounded(up, torch.bfloat16), clamp, weight).to(torch.bfloat16)
    return formats.cast(hidden, *cast).values @ w2.double().t()


def combine(rows: Sequence[dict[int, Tensor]], width: int, bias: Tensor | None = None) -> Tensor:
    """Sum of each token's rows (expert id -> ``[H]``), ascending id, then ``bias``; fp64 ``[T, H]``."""
    total = torch.zeros(len(rows), width, dtype=torch.float64)
    for t, by_expert in enumerate(rows):
        for e in sorted(by_expert):
            total[t] += by_expert[e].double()
    return total if bias is None else total + bias.double()
