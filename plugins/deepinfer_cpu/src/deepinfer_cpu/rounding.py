"""Element and scale formats: rounding, codes and tables (``spec/kernels.md`` 1.1, ``spec/model.md`` 2.0).

Rounding to E4M3 and E2M1 happens in fp32 by adding and subtracting a power of two large enough that the fp32 rounding
of the sum is the wanted rounding: nearest, ties to even, subnormals included. It is exact, needs no cast to an 8-bit
type (torch's cast back is thirty times slower), and every element is independent of its neighbours.
"""

from __future__ import annotations

from functools import cache

import torch
from attrs import frozen
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

_EXPONENT, _MANTISSA = 0x7F800000, 0x007FFFFF


@frozen(eq=False)
class Constants:
    """What rounding and decoding need on one device: 0-dim tensors, and tables by code."""

    exponent: Tensor
    mantissa: Tensor
    e4m3_smallest_normal: Tensor
    e4m3_step: Tensor
    e2m1_smallest_normal: Tensor
    e2m1_step: Tensor
    e2m1_top: Tensor
    two: Tensor
    no_code: Tensor
    last_code: Tensor
    e4m3: Tensor
    e8m0: Tensor
    e2m1_pairs: Tensor
    e2m1_code_of_double: Tensor


@cache
def constants(device: torch.device) -> Constants:
    """Those of ``device``; made at the first use, shared, never to be changed."""
    with torch.inference_mode(False):
        tables = _e4m3_table(), _e8m0_table(), _e2m1_pairs(), torch.tensor(_CODE_OF_DOUBLE, dtype=torch.uint8)
        return Constants(
            i32(_EXPONENT, device),
            i32(_MANTISSA, device),
            f32(2.0**-6, device),
            f32(1.5 * 2.0**20, device),
            f32(1.0, device),
            f32(1.5 * 2.0**22, device),
            f32(E2M1_MAX, device),
            f32(2.0, device),
            i32(0, device),
            i32(12, device),
            *(table.to(device) for table in tables),
        )


def round_e4m3(x: Tensor) -> Tensor:
    """fp32 ``x`` with ``|x| <= 448`` rounded to the nearest E4M3 value, as fp32 (NaN stays NaN; -0 may become +0)."""
    c = constants(x.device)
    step = (x.view(torch.int32) & c.exponent).view(torch.float32).clamp_(min=c.e4m3_smallest_normal).mul_(c.e4m3_step)
    return torch.add(x, step).sub_(step)


def round_e2m1(x: Tensor) -> Tensor:
    """fp32 ``x`` with ``|x| <= 6`` rounded to the nearest E2M1 value, as fp32 (-0 may become +0)."""
    c = constants(x.device)
    step = (x.view(torch.int32) & c.exponent).view(torch.float32).clamp_(min=c.e2m1_smallest_normal).mul_(c.e2m1_step)
    return torch.add(x, step).sub_(step)


def encode_e4m3(x: Tensor) -> Tensor:
    """fp32 -> E4M3 bytes (uint8), saturating; the sign of zero is kept."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def encode_e2m1(x: Tensor) -> Tensor:
    """fp32 ``[..., 2n]`` -> E2M1 codes, two a byte, even element low (uint8 ``[..., n]``), saturating, -0 -> code 8.

    The format has no NaN: a NaN becomes some code (its group's E4M3 scale is then NaN; an E8M0 scale is not).
    """
    c = constants(x.device)
    doubled = round_e2m1(x.abs().clamp_(max=c.e2m1_top)).mul_(c.two).to(torch.int32)
    magnitude = doubled.clamp_(c.no_code, c.last_code)  # what NaN turns into lies outside
    codes = c.e2m1_code_of_double.index_select(0, magnitude.view(-1)).view(x.shape)
    codes = codes | (x.signbit().to(torch.uint8) << 3)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def decode_e4m3(codes: Tensor) -> Tensor:
    """E4M3 bytes (uint8 ``[..., n]``) -> fp32 ``[..., n]``."""
    return constants(codes.device).e4m3.index_select(0, codes.to(torch.int32).reshape(-1)).view(codes.shape)


def decode_e2m1(codes: Tensor) -> Tensor:
    """Packed E2M1 (uint8 ``[..., n]``) -> fp32 ``[..., 2n]``."""
    pairs = constants(codes.device).e2m1_pairs.index_select(0, codes.to(torch.int32).reshape(-1))
    return pairs.view(torch.float32).view(*codes.shape[:-1], codes.shape[-1] * 2)


def decode_e8m0(codes: Tensor) -> Tensor:
    """UE8M0 bytes (uint8) -> fp32 ``2^(byte - 127)``; byte 255 is NaN."""
    return constants(codes.device).e8m0.index_select(0, codes.to(torch.int32).reshape(-1)).view(codes.shape)


def pow2_ceil(x: Tensor) -> Tensor:
    """Smallest power of two ``>= x`` for positive normal fp32 ``x``, by its bits."""
    c = constants(x.device)
    return ((x.view(torch.int32) + c.mantissa) & c.exponent).view(torch.float32)


def encode_e8m0(scale: Tensor) -> Tensor:
    """Exponent byte of a power of two (normal fp32) as uint8."""
    return (scale.view(torch.int32) >> 23).to(torch.uint8)


def _e4m3_table() -> Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)


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


_CODE_OF_DOUBLE = (0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7)
"""Index: twice the magnitude (0, 1, 2, 3, 4, 6, 8, 12)."""
