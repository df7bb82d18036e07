"""Matrix products in fp64 of dequantised operands (``spec/kernels.md`` 2.6). Weights are ``[out, in]``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def dense(a: Tensor, w: Tensor, acc: Tensor | None = None) -> Tensor:
    """``a`` ``[..., K]`` times the transpose of ``w`` ``[N, K]``, plus ``acc``."""
    y = a.double() @ w.double().t()
    return y if acc is None else y + acc.double()


def grouped(a: Tensor, weights: Sequence[Tensor], ends: Sequence[int]) -> Tensor:
    """Rows ``[ends[g - 1], ends[g])`` times the weight of group g; later rows are undefined and zero here."""
    y = torch.zeros(a.shape[0], weights[0].shape[0], dtype=torch.float64)
    begin = 0
    for weight, end in zip(weights, ends, strict=True):
        y[begin:end] = dense(a[begin:end], weight)
        begin = end
    return y


def einsum_heads(a: Tensor, w: Tensor) -> Tensor:
    """``a`` ``[T, G, K]``, ``w`` ``[G * N, K]`` group-major -> ``[T, G, N]``."""
    groups = a.shape[1]
    per_group = w.double().view(groups, -1, w.shape[1])
    return torch.einsum("tgk,gnk->tgn", a.double(), per_group)
