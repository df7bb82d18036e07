"""Packed scales: two UE8M0 bytes in an int16 word, the lower group in the low byte (``spec/kernels.md`` 1.2, 7.1).

Products take them column-major: logical ``[M, K / 64]``, stride (1, M). Unlike on NVIDIA's devices a column has no
padding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_ascend.contracts import misfit

GROUP = 32
"""Values that share a scale."""
PER_WORD = 2
SPAN = GROUP * PER_WORD
"""Values of a word."""


def pack(scales: Tensor) -> Tensor:
    """uint8 ``[..., M, G]``, G even -> int16 ``[..., M, G / 2]``, column-major in its last two dimensions."""
    words = scales.contiguous().view(torch.int16)
    return words.transpose(-1, -2).contiguous().transpose(-1, -2)


def unpack(words: Tensor) -> Tensor:
    """int16 ``[..., M, W]`` -> uint8 ``[..., M, 2W]``, row-major."""
    return words.contiguous().view(torch.uint8)


def check_words(call: str, argument: str, words: object, rows: int, width: int) -> Tensor:
    """Column-major words for ``rows`` rows of ``width`` values. Raises ShapeContractError."""
    if not isinstance(words, Tensor) or words.dtype != torch.int16:
        got = words.dtype if isinstance(words, Tensor) else type(words).__name__
        raise misfit(call, argument, "int16 words of two UE8M0 scales", got)
    if words.shape != (rows, width // SPAN) or width % SPAN:
        raise misfit(call, argument, f"[{rows}, {width} / {SPAN}]", list(words.shape))
    strides = (words.stride(0) if rows > 1 else 1, words.stride(1) if words.shape[1] > 1 else rows)
    if strides != (1, rows):
        raise misfit(call, argument, f"column-major without padding, strides (1, {rows})", f"strides {words.stride()}")
    return words
