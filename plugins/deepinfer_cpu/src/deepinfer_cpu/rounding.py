"""Element and scale formats: rounding, codes and tables (``spec/kernels.md`` 1.1, ``spec/model.md`` 2.0).

Rounding to E4M3 and E2M1 happens in fp32 by adding and subtracting a power of two large enough that the fp32 rounding
of the sum is the wanted rounding: nearest, ties to even, subnormals included. It is exact, needs no cast to an 8-bit
type (torch's cast back is thirty times slower), and every element is independent of its neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_cpu.scalars import f32, i32

E4M3_MAX = 448.0
E2M1_MAX = 6.0
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SIXTH = float(torch.tensor(1.0) / torch.tensor(6.0))
"""fp32(1/6), the factor of the E4M3 scale of FP4 groups."""

AMAX_FLOOR_E4M3 = 1e-4
AMAX_FLOOR_E2M1 = 6.0 * 2.0**-126
AMAX_FLOOR_E2M1_E4M3 = 6.0 * 2.0**-9

_EXPONENT = i32(0x7F800000)
_MANTISSA = i32(0x007FFFFF)
_E4M3_SMALLEST_NORMAL, _E4M3_STEP = f32(2.0**-6), f32(1.5 * 2.0**20)
_E2M1_SMALLEST_NORMAL, _E2M1_STEP = f32(1.0), f32(1.5 * 2.0**22)
_E2M1_TOP, _TWO = f32(E2M1_MAX), f32(2.0)
_NO_CODE, _LAST_CODE = i32(0), i32(12)


def round_e4m3(x: Tensor) -> Tensor:
    """fp32 ``x`` with ``|x| <= 448`` rounded to the nearest E4M3 value, as fp32 (NaN stays NaN; -0 may become +0)."""
    step = (x.view(torch.int32) & _EXPONENT).view(torch.float32).clamp_(min=_E4M3_SMALLEST_NORMAL).mul_(_E4M3_STEP)
    return torch.add(x, step).sub_(step)


def round_e2m1(x: Tensor) -> Tensor:
    """fp32 ``x`` with ``|x| <= 6`` rounded to the nearest E2M1 value, as fp32 (-0 may become +0)."""
    step = (x.view(torch.int32) & _EXPONENT).view(torch.float32).clamp_(min=_E2M1_SMALLEST_NORMAL).mul_(_E2M1_STEP)
    return torch.add(x, step).sub_(step)


def encode_e4m3(x: Tensor) -> Tensor:
    """fp32 -> E4M3 bytes (uint8), saturating; the sign of zero is kept."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def encode_e2m1(x: Tensor) -> Tensor:
    """fp32 ``[..., 2n]`` -> E2M1 codes, two a byte, even element low (uint8 ``[..., n]``), saturating, -0 -> code 8.

    The format has no NaN: a NaN becomes some code (its group's E4M3 scale is then NaN; an E8M0 scale is not).
    """
    doubled = round_e2m1(x.abs().clamp_(max=_E2M1_TOP)).mul_(_TWO).to(torch.int32)
    magnitude = doubled.clamp_(_NO_CODE, _LAST_CODE)  # what NaN turns into lies outside
    codes = _E2M1_CODE_OF_DOUBLE.index_select(0, magnitude.view(-1)).view(x.shape)
    codes = codes | (x.signbit().to(torch.uint8) << 3)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def decode_e4m3(codes: Tensor) -> Tensor:
    """E4M3 bytes (uint8 ``[..., n]``) -> fp32 ``[..., n]``."""
    return _E4M3.index_select(0, codes.to(torch.int32).reshape(-1)).view(codes.shape)


def decode_e2m1(codes: Tensor) -> Tensor:
    """Packed E2M1 (uint8 ``[..., n]``) -> fp32 ``[..., 2n]``."""
    pairs = _E2M1_PAIRS.index_select(0, codes.to(torch.int32).reshape(-1))
    return pairs.view(torch.float32).view(*codes.shape[:-1], codes.shape[-1] * 2)


def decode_e8m0(codes: Tensor) -> Tensor:
    """UE8M0 bytes (uint8) -> fp32 ``2^(byte - 127)``; byte 255 is NaN."""
    return _E8M0.index_select(0, codes.to(torch.int32).reshape(-1)).view(codes.shape)


def pow2_ceil(x: Tensor) -> Tensor:
    """Smallest power of two ``>= x`` for positive normal fp32 ``x``, by its bits."""
    return ((x.view(torch.int32) + _MANTISSA) & _EXPONENT).view(torch.float32)


def encode_e8m0(scale: Tensor) -> Tensor:
    """Exponent byte of a power of two (normal fp32) as uint8."""
    return (scale.view(torch.int32) >> 23).to(torch.uint8)


def _e2m1_signed() -> Tensor:
    values = torch.tensor(E2M1_VALUES)
    return torch.cat([values, -values])


def _e8m0_table() -> Tensor:
    table = torch.ldexp(torch.ones(256, dtype=torch.float64), torch.arange(256) - 127).to(torch.float32)
    table[255] = float("nan")
    return table


def _e2m1_pairs() -> Tensor:
    byte = torch.arange(256)
    signed = _e2m1_signed()
    # One int64 holds the two fp32 values of a byte: one table look-up yields both.
    return torch.stack([signed[byte & 15], signed[byte >> 4]], dim=1).contiguous().view(torch.int64).view(-1)


_E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)
_E8M0 = _e8m0_table()
_E2M1_PAIRS = _e2m1_pairs()
# Index: twice the magnitude (0, 1, 2, 3, 4, 6, 8, 12).
_E2M1_CODE_OF_DOUBLE = torch.tensor([0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7], dtype=torch.uint8)
