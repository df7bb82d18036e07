"""FP8 weights in the order in which a product's register operand takes them (``tl/dense``)."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_cuda.tensors import PreparedWeight

PACKED = "packed"
"""Name of the layout."""
ROWS, INPUTS = 16, 32
"""Outputs and inputs of a packed piece: 512 bytes, 16 for each thread of a warp."""
BIAS = 120
"""Exponent that the unpacked bits of a code lack: 127 of bf16 less 7 of E4M3."""
LARGEST_EXPONENT = 127 - BIAS
"""Of a scale, so that scale and bias together are one bf16 number."""


def packed_codes(w: PreparedWeight) -> Tensor:
    """E4M3 codes ``[(G,) out, in]`` -> uint32 words ``[(G) out / 16, in / 32, 128]``.

    Thread 4g + t of a warp holds 16 bytes: for each of four groups of eight inputs, inputs 2t and 2t + 1 of outputs g
    and g + 8, the outputs alternating.
    """
    outputs, inputs = w.size[:-1].numel(), w.inputs
    pieces = w.stored.view(torch.uint8).view(outputs // ROWS, 2, 8, inputs // INPUTS, 4, 4, 2)
    ordered = pieces.permute(0, 3, 2, 5, 4, 6, 1).contiguous()
    return ordered.view(outputs // ROWS, inputs // INPUTS, 512).view(torch.uint32)


def unpacked_codes(w: PreparedWeight) -> Tensor:
    """The codes of a weight that keeps :func:`packed_codes` alone, as they were stored."""
    outputs, inputs = w.size[:-1].numel(), w.inputs
    pieces = w.layout(PACKED, packed_codes).view(torch.uint8)
    pieces = pieces.view(outputs // ROWS, inputs // INPUTS, 8, 4, 4, 2, 2)
    return pieces.permute(0, 6, 2, 1, 4, 3, 5).reshape(w.size)


def factors(w: PreparedWeight) -> Tensor:
    """Scale times missing bias as two equal bf16 in a word: uint32 ``[(G) out / 32, in / 32]``."""
    if w.scales is None:  # a plain weight: never read, but of the shape that the kernel was told
        return torch.zeros(-(-w.size[:-1].numel() // 32), w.inputs // 32, dtype=torch.uint32, device=w.device)
    half = (w.scales.flatten(0, -2).to(torch.int32) + BIAS) << 7
    return (half | (half << 16)).view(torch.uint32)


def can_pack(w: PreparedWeight) -> bool:
    """Whether the layout holds the weight: whole pieces, one scale a block, scales within reach of bf16."""
    low, high = w.reach
    whole = w.outputs % 64 == 0 and w.inputs % 128 == 0
    return w.fmt == "e4m3" and w.block_rows == 32 and whole and low >= -110 and high <= LARGEST_EXPONENT
