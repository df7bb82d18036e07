"""Inputs of op tests: tensors whose every element is known, made on the host from a seeded generator."""

from __future__ import annotations

import torch
from torch import Tensor

E4M3_CODES = 0x7F
"""Finite magnitudes of E4M3; the code behind them is NaN."""


def normal(g: torch.Generator, *shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
    """Normal values of standard deviation ``scale``."""
    return (torch.randn(*shape, generator=g) * scale).to(dtype)


def ones_and_more(g: torch.Generator, *shape: int) -> Tensor:
    """bf16 from 1 to 2, all of one sign: sums of products grow with every term."""
    return (1 + torch.rand(*shape, generator=g)).bfloat16()


def uneven(g: torch.Generator, *shape: int, dtype: torch.dtype = torch.bfloat16, octaves: int = 12) -> Tensor:
    """Normal values with a power of two of its own for each run of 16: neighbouring groups need different scales."""
    x = torch.randn(*shape, generator=g)
    runs = torch.randint(-octaves, octaves + 1, (*shape[:-1], -(-shape[-1] // 16)), generator=g)
    return torch.ldexp(x, runs.repeat_interleave(16, -1)[..., : shape[-1]]).to(dtype)


def strided(x: Tensor, *, gap: int = 32, offset: int = 64) -> Tensor:
    """The same values with longer rows in between and a storage offset; the last dimension stays contiguous."""
    buffer = torch.full((x.numel() // x.shape[-1] if x.numel() else 1, x.shape[-1] + gap), 77.0).to(x.dtype)
    padded = torch.cat([torch.full((offset,), 55.0).to(x.dtype), buffer.flatten()]).to(x.device)
    steps = [1]
    width = x.shape[-1] + gap
    for size in reversed(x.shape[1:-1]):
        steps.append(width)
        width *= size
    if x.dim() > 1:
        steps.append(width)
    view = padded.as_strided(x.shape, tuple(reversed(steps)), offset)
    view.copy_(x)
    return view


def fp8_weight(g: torch.Generator, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    """A checkpoint weight: E4M3 ``[out, in]`` and uint8 E8M0 scales of its 32x32 blocks, no two neighbours alike."""
    codes = torch.randint(0, E4M3_CODES, (outputs, inputs), generator=g, dtype=torch.uint8)
    signs = torch.randint(0, 2, (outputs, inputs), generator=g, dtype=torch.uint8) << 7
    grid = (-(-outputs // 32), -(-inputs // 32))
    return (codes | signs).view(torch.float8_e4m3fn), _scales(g, *grid, lowest=112)


def fp4_weight(g: torch.Generator, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    """A checkpoint weight: packed E2M1 ``[out, in / 2]`` (int8) and uint8 E8M0 scales of groups of 32 inputs."""
    codes = torch.randint(0, 256, (outputs, inputs // 2), generator=g, dtype=torch.uint8)
    return codes.view(torch.int8), _scales(g, outputs, inputs // 32, lowest=119)


def _scales(g: torch.Generator, rows: int, columns: int, *, lowest: int) -> Tensor:
    """Scales that differ along both dimensions, so that a transposed or shifted grid gives other values."""
    steps = 3 * torch.arange(rows).unsqueeze(1) + torch.arange(columns).unsqueeze(0)
    return (lowest + (steps + torch.randint(0, 2, (rows, columns), generator=g)) % 6).to(torch.uint8)
