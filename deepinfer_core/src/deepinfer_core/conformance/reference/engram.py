"""Engram in Python integers and fp64 (``spec/model.md`` 2.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def hash_rows(
    ids: Sequence[Sequence[int]], multipliers: Sequence[int], primes: Sequence[int], offsets: Sequence[int]
) -> list[list[int]]:
    """Rows ``[T][columns]`` of token windows ``ids`` ``[T][G]``, newest first; primes order-major, then head."""
    orders = len(multipliers) - 1
    heads = len(primes) // orders
    result = []
    for window in ids:
        row, h = [], window[0] * multipliers[0]
        for n in range(1, orders + 1):
            h ^= window[n] * multipliers[n]
            for head in range(heads):
                column = (n - 1) * heads + head
                row.append(offsets[column] + h % primes[column])
        result.append(row)
    return result


def gate_of(d: Tensor) -> Tensor:
    """``sigmoid(sign(d) sqrt(max(|d|, 1e-6)))``, fp64; the sign of a zero counts."""
    return torch.sigmoid(torch.copysign(d.abs().clamp(min=1e-6).sqrt(), d))


def gate(x: Tensor, kv: Tensor, weight: Tensor, eps: float, mask: Tensor | None = None) -> Tensor:
    """``X_j + g_j v`` in fp64: ``x`` ``[T, c, H]``, ``kv`` ``[T, (c + 1) H]``, ``weight`` ``[c, H]``."""
    tokens, c, width = x.shape
    xd, kvd = x.double(), kv.double()
    k, v = kvd[:, : c * width].reshape(tokens, c, width), kvd[:, c * width :]
    rx = (xd.square().mean(2) + eps).rsqrt()
    rk = (k.square().mean(2) + eps).rsqrt()
    d = (xd * weight.double() * k).sum(2) * rx * rk * width**-0.5
    g = gate_of(d)
    if mask is not None:
        g = g * mask.double().unsqueeze(1)
    return xd + g.unsqueeze(2) * v.unsqueeze(1)
