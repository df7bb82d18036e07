"""Rotary tables and rotation, Walsh-Hadamard, and the stages of ``transform.fused`` one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def frequencies(rotary_dim: int, theta: float, scaling: Mapping[str, float] | None) -> list[float]:
    """Angular frequency of each pair, with YaRN where ``scaling`` says so (``spec/model.md`` 2.0)."""
    plain = [theta ** (-2.0 * i / rotary_dim) for i in range(rotary_dim // 2)]
    if scaling is None:
        return plain

    def c(n: float) -> float:
        length = scaling["original_max_position_embeddings"]
        return rotary_dim * math.log(length / (2 * math.pi * n)) / (2 * math.log(theta))

    lo = max(math.floor(c(scaling["beta_fast"])), 0)
    hi = min(math.ceil(c(scaling["beta_slow"])), rotary_dim - 1)
    result = []
    for i, g in enumerate(plain):
        ramp = min(max((i - lo) / max(hi - lo, 1e-3), 0.0), 1.0)
        result.append(g * (1 - ramp) + g / scaling["factor"] * ramp)
    return result


def rope_table(
    positions: Sequence[int], rotary_dim: int, theta: float, scaling: Mapping[str, float] | None = None
) -> Tensor:
    """fp64 rows of ``positions`` ``[n, R]``, cosines then sines of fp32 angles: the frequency is rounded to fp32, and
    so is its product with the position."""
    f = torch.tensor(frequencies(rotary_dim, theta, scaling), dtype=torch.float64).float()
    angles = (torch.tensor(positions, dtype=torch.float32).unsqueeze(1) * f).tolist()
    rows = [[math.cos(a) for a in row] + [math.sin(a) for a in row] for row in angles]
    return torch.tensor(rows, dtype=torch.float64).view(len(positions), rotary_dim)


def rotary(x: Tensor, cos_sin: Tensor, positions: Tensor, conjugate: bool) -> Tensor:
    """The last R dimensions of ``x`` (``[n, d]`` or ``[n, h, d]``) turned in adjacent pairs, in the dtype of ``x``.

    ``fma(x0, cos, -(x1 sin))`` and ``fma(x0, sin, x1 cos)``: the inner product is rounded to fp32, the sum once more.
    """
    size = cos_sin.shape[1]
    rows = cos_sin.float()[positions.long()]
    cos, sin = rows[:, : size // 2], rows[:, size // 2 :]
    if conjugate:
        sin = -sin
    if x.dim() == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    tail = x[..., x.shape[-1] - size :].float()
    x0, x1 = tail[..., 0::2], tail[..., 1::2]
    even = (x0.double() * cos.double() - (x1 * sin).double()).float()
    odd = (x0.double() * sin.double() + (x1 * cos).double()).float()
    turned = torch.stack([even, odd], dim=-1).flatten(-2)
    return torch.cat([x[..., : x.shape[-1] - size], turned.to(x.dtype)], dim=-1)


def hadamard(x: Tensor, scale: float) -> Tensor:
    """Butterflies of ascending distance in fp32, times ``scale``, in the dtype of ``x`` ``[..., 2^k]``."""
    y = x.float()
    size, distance = x.shape[-1], 1
    while distance < size:
        at = torch.arange(size)
        partner = y[..., at ^ distance]
        y = torch.where((at & distance) == 0, y + partner, partner - y)
        distance *= 2
    return (y * torch.tensor(scale)).to(x.dtype)
