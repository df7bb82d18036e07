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
    slabs, steps = units(codes.shape[1]), units(codes.shape[2] * 2)
    out = torch.empty(len(codes), slabs, steps * LINES, LINE, dtype=torch.int32, device=codes.device)
    for place, c, s in zip(out, codes, scales, strict=True):
        place.copy_(_pack_one(c, s, gated))
    return out.view(-1, steps * LINES, LINE)


def unpack(packed: Tensor, size: torch.Size, *, gated: bool) -> Tensor:
    """The codes of :func:`pack`, uint8 ``size`` = ``[E, N, K / 2]``."""
    out = torch.empty(size, dtype=torch.uint8, device=packed.device)
    for place, words in zip(out, packed.view(len(out), -1, LINES * LINE), strict=True):
        place.copy_(_unpack_one(words[:, :CODE_WORDS], size[1], size[2] * 2, gated))
    return out


def _pack_one(codes: Tensor, scales: Tensor, gated: bool) -> Tensor:
    rows, columns = codes.shape[0], codes.shape[1] * 2
    slabs, steps = units(rows), units(columns)
    c = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).to(torch.int32)
    s = scales.to(torch.int32)
    if gated:
        order = _alternating(rows, codes.device)
        c, s = c[order], s[order]
    c = torch.nn.functional.pad(c, (0, steps * INPUTS - columns, 0, slabs * OUTPUTS - rows))
    s = torch.nn.functional.pad(s, (0, steps * 2 - s.shape[1], 0, slabs * OUTPUTS - rows), value=127)
    #            slab warp half r  step group eight lane pair
    c = c.view(slabs, 4, 2, 8, steps, 2, 4, 4, 2)
    words = torch.zeros_like(c[..., 0, :, 0])
    for eight in range(4):
        for odd in range(2):
            words |= _spread(c[..., eight, :, odd], eight, odd)
    words = words.permute(0, 4, 1, 3, 6, 5, 2).reshape(slabs, steps, CODE_WORDS)
    s = s.view(slabs, 4, 2, 8, steps, 2).permute(0, 4, 1, 3, 5, 2).reshape(slabs, steps, 4 * SCALE_WORDS)
    biased = ((s + BIAS) & 255).to(torch.uint8).contiguous().view(torch.int32)
    return torch.cat([words, biased], dim=-1).view(slabs, steps * LINES, LINE)


def _unpack_one(words: Tensor, rows: int, columns: int, gated: bool) -> Tensor:
    slabs, steps = units(rows), units(columns)
    #                  slab step warp r lane group half -> slab warp half r step group lane
    words = words.reshape(slabs, steps, 4, 8, 4, 2, 2).permute(0, 2, 6, 3, 1, 5, 4)
    pairs = [torch.stack([_gathered(words, eight, odd) for odd in range(2)], dim=-1) for eight in range(4)]
    c = torch.stack(pairs, dim=-3).reshape(slabs * OUTPUTS, steps * INPUTS)[:rows, :columns]
    if gated:
        c = torch.empty_like(c).index_copy_(0, _alternating(rows, c.device), c)
    return c[:, 0::2] | c[:, 1::2] << 4


def _alternating(rows: int, device: torch.device) -> Tensor:
    """Eight rows of the first half, the eight of the second that belong to them, and so on."""
    return torch.arange(rows, device=device).view(2, rows // 16, 8).transpose(0, 1).reshape(-1)


PLACES = ((14, 7, 8, 15), (4, 5, 6, 13), (0, 1, 2, 9), (26, 27, 28, 3))
"""Where the bits of the even code of each eight lie in a word: mantissa, low and high bit of the exponent, sign. The
odd one's lie half a word further on. ``di_expand_e2m1`` says why."""


def _spread(code: Tensor, eight: int, odd: int) -> Tensor:
    """A word with a code's bits where ``di_expand_e2m1`` looks for them."""
    word = torch.zeros_like(code)
    for bit, place in enumerate(PLACES[eight]):
        word |= (code >> bit & 1) << (place + 16 * odd) % 32
    return word


def _gathered(word: Tensor, eight: int, odd: int) -> Tensor:
    """The code that :func:`_spread` put into ``word``, uint8."""
    code = torch.zeros_like(word)
    for bit, place in enumerate(PLACES[eight]):
        code |= (word >> (place + 16 * odd) % 32 & 1) << bit
    return code.to(torch.uint8)
