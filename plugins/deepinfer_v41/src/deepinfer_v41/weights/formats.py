"""Stored number formats, decoded: E8M0 scales, FP8 with block scales, MXFP4 (spec/model.md 2.0 and 3).

Plain torch on whole matrices, for tests and tools; the model itself gives stored tensors to the backend.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.errors import CheckpointError

E8M0_NAN = 255

_E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# 2**-127, the value of byte 0, is below the normal range of float32: its bit pattern is a subnormal.
_BITS_OF_BYTE_0 = 0x0040_0000


def e8m0_to_f32(scale: Tensor) -> Tensor:
    """E8M0 of any shape -> f32 ``2**(byte-127)``, exact. Raises CheckpointError on byte 255 (NaN)."""
    exponents = scale.view(torch.uint8)
    if bool((exponents == E8M0_NAN).any()):
        raise CheckpointError(
            "an E8M0 scale has byte 255, which is no number", remedy="download the checkpoint again, or requantise it"
        )
    bits = exponents.to(torch.int32) << 23
    return torch.where(exponents == 0, _BITS_OF_BYTE_0, bits).view(torch.float32)


def find_not_power_of_two(scale: Tensor) -> Tensor:
    """f32 of any shape -> bool of the same shape: true where a value is no power of two from 2**-127 to 2**127."""
    bits = scale.contiguous().view(torch.int32)
    # Infinity and NaN have the exponent 255; zero and negative values have no positive exponent field.
    is_normal = ((bits & 0x007F_FFFF) == 0) & (bits > 0) & ((bits >> 23) < E8M0_NAN)
    return ~(is_normal | (bits == _BITS_OF_BYTE_0))


def f32_to_e8m0(scale: Tensor) -> Tensor:
    """f32 powers of two -> E8M0 bytes of the same shape, exact. Raises CheckpointError on any other value."""
    wrong = find_not_power_of_two(scale)
    if bool(wrong.any()):
        value = float(scale[wrong][0])
        raise CheckpointError(
            f"scale {value:g} is no power of two",
            reason="the released formats have E8M0 scales: powers of two only",
            remedy="requantise the checkpoint with power-of-two scales",
        )
    return (scale.contiguous().view(torch.int32) >> 23).to(torch.uint8).view(torch.float8_e8m0fnu)


def dequantize_block_fp8(weight: Tensor, scale: Tensor, block: tuple[int, int] = (32, 32)) -> Tensor:
    """E4M3 ``[o, i]`` and scales ``[ceil(o/b0), ceil(i/b1)]`` (E8M0, or f32 powers of two) -> f32 ``[o, i]``.

    ``block=(1, 32)`` decodes Engram rows. Raises CheckpointError when the scale grid does not belong to the weight.
    """
    rows, columns = weight.shape
    _check_grid("FP8", (rows, columns), scale, (-(-rows // block[0]), -(-columns // block[1])))
    spread = _scale_values(scale).repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    return weight.float() * spread


def dequantize_mxfp4(weight: Tensor, scale: Tensor) -> Tensor:
    """Packed E2M1 int8 ``[o, i/2]`` (low nibble first) and scales ``[o, i/32]`` -> f32 ``[o, i]``.

    Raises CheckpointError when the scale grid does not belong to the weight.
    """
    rows, n_bytes = weight.shape
    columns = 2 * n_bytes
    _check_grid("MXFP4", (rows, columns), scale, (rows, -(-columns // 32)))
    packed = weight.view(torch.uint8)
    codes = torch.stack([packed & 0xF, packed >> 4], dim=2).view(rows, columns).long()
    table = torch.tensor([*_E2M1_VALUES, *(-value for value in _E2M1_VALUES)])
    return table[codes] * _scale_values(scale).repeat_interleave(32, 1)[:, :columns]


def _scale_values(scale: Tensor) -> Tensor:
    return e8m0_to_f32(scale if scale.dtype == torch.float8_e8m0fnu else f32_to_e8m0(scale))


def _check_grid(kind: str, logical: tuple[int, int], scale: Tensor, expected: tuple[int, int]) -> None:
    found = tuple(scale.shape)
    if found != expected:
        transposed = "it is the transposed grid" if found == expected[::-1] else "it belongs to another weight or block"
        raise CheckpointError(
            f"{kind} weight of {list(logical)} values needs a scale of {list(expected)}, got {list(found)}",
            reason=transposed,
            remedy="store one scale per block, rows of blocks first",
        )
