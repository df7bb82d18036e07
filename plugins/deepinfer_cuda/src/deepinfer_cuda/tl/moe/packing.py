"""Layout of a stack of MXFP4 matrices for the grouped product.

A unit is 64 outputs by 64 inputs: 512 words of codes, ``[thread of 128][group of 32 inputs][row r, row r + 8]``, then
32 words of scales, ``[warp][r][group][row r, row r + 8]`` bytes. A thread reads the codes of its two rows and of the
columns ``2 (lane % 4) + {0, 1}`` of every eight as one vector of 16 bytes. A word holds eight codes, spread as
``tiles.cuh`` takes them. Units lie as ``[expert * slabs + slab of 64 outputs, unit of 64 inputs, 17, 32]``; both
dimensions are filled up with zeros. Scales are biased by 126, the power that the spread codes lack.

Outputs of a gated stack alternate: 8 of the first half (gate), the 8 of the second half (up) that belong to them.
"""

import torch
from torch import Tensor

OUTPUTS, INPUTS = 64, 64
"""Outputs and inputs of a unit."""
LINES, LINE = 17, 32
"""A unit is 17 lines of 32 words."""
CODE_WORDS, SCALE_WORDS = 512, 32
BIAS = 126
REACH = (-110, 1)
"""Exponents of scales that the layout can hold: the biased one must fit a bf16."""


def units(size: int) -> int:
    """Units along a dimension."""
    return -(-size // 64)


def pack(codes: Tensor, scales: Tensor, *, gated: bool) -> Tensor:
    """uint8 codes ``[E, N, K / 2]`` and E8M0 ``[E, N, K / 32]`` -> int32 ``[E * slabs, units * 17, 32]``."""
    parts = [_pack_one(c, s, gated) for c, s in zip(codes, scales, strict=True)]
    return torch.cat(parts) if parts else codes.new_zeros(0, LINES, LINE, dtype=torch.int32)


def _pack_one(codes: Tensor, scales: Tensor, gated: bool) -> Tensor:
    rows, columns = codes.shape[0], codes.shape[1] * 2
    slabs, steps = units(rows), units(columns)
    c = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).to(torch.int32)
    s = scales.to(torch.int32)
    if gated:
        order = torch.arange(rows, device=codes.device).view(2, rows // 16, 8).transpose(0, 1).reshape(-1)
        c, s = c[order], s[order]
    c = torch.nn.functional.pad(c, (0, steps * INPUTS - columns, 0, slabs * OUTPUTS - rows))
    s = torch.nn.functional.pad(s, (0, steps * 2 - s.shape[1], 0, slabs * OUTPUTS - rows), value=127)
    #            slab warp half r  step group eight lane pair
    c = c.view(slabs, 4, 2, 8, steps, 2, 4, 4, 2)
    words = torch.zeros_like(c[..., 0, :, 0])
    for eight in range(4):
        for odd in range(2):
            words |= _spread(c[..., eight, :, odd], eight) << (16 * odd)
    words = words.permute(0, 4, 1, 3, 6, 5, 2).reshape(slabs, steps, CODE_WORDS)
    s = s.view(slabs, 4, 2, 8, steps, 2).permute(0, 4, 1, 3, 5, 2).reshape(slabs, steps, 4 * SCALE_WORDS)
    biased = ((s + BIAS) & 255).to(torch.uint8).contiguous().view(torch.int32)
    return torch.cat([words, biased], dim=-1).view(slabs, steps * LINES, LINE)


def _spread(code: Tensor, eight: int) -> Tensor:
    """A code's bits where ``di_expand_e2m1`` looks for them in a half word."""
    sign, rest = code >> 3, code & 7
    if eight < 3:
        return sign << (15 - 3 * eight) | rest << (6 - 3 * eight)
    return sign << 14 | rest >> 2 << 13 | (rest & 3) << 10
