"""Element and scale formats by tables of all their values (``spec/kernels.md`` 1.1): rounding is a search among them.

Nothing here is fast and nothing is shared with a backend. Arithmetic that the specification asks for in fp32 is done in
fp32, one correctly rounded operation at a time; everything else is fp64, in which values of these formats are exact.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

E4M3_MAX, E2M1_MAX = 448.0, 6.0
E4M3_NAN = 0x7F
E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _e4m3_magnitude(code: int) -> float:
    exponent, mantissa = code >> 3, code & 7
    return mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)


E4M3_MAGNITUDES = tuple(_e4m3_magnitude(code) for code in range(E4M3_NAN))
"""Of codes 0 to 0x7E; 0x7F is NaN."""


@frozen(eq=False)
class Coded:
    """A tensor in codes. ``data`` uint8 as stored, ``sf`` uint8 or fp32 ``[..., K / group]``, ``values`` fp64."""

    data: Tensor
    sf: Tensor
    values: Tensor


def nearest_code(x: Tensor, magnitudes: tuple[float, ...]) -> Tensor:
    """Index of the magnitude nearest to ``|x|`` (fp64), a tie to the even index, beyond the last to the last."""
    table = torch.tensor(magnitudes, dtype=torch.float64)
    between = (table[1:] + table[:-1]) / 2  # exact
    size = x.abs().contiguous()
    code = torch.searchsorted(between, size)
    tie = (code < len(between)) & (between[code.clamp(max=len(between) - 1)] == size)
    return code + (tie & (code % 2 == 1)).to(code.dtype)


def encode_e4m3(x: Tensor) -> Tensor:
    """fp64 -> E4M3 bytes: nearest even, saturating, the sign of zero and NaN kept."""
    code = nearest_code(x.nan_to_num(nan=0.0), E4M3_MAGNITUDES)
    code = torch.where(x.isnan(), torch.full_like(code, E4M3_NAN), code)
    return (code | (x.signbit().long() << 7)).to(torch.uint8)


def decode_e4m3(data: Tensor) -> Tensor:
    """E4M3 bytes -> fp64."""
    table = torch.tensor([*E4M3_MAGNITUDES, float("nan")], dtype=torch.float64)
    code = data.long()
    return torch.where(code >= 128, -table[code & 127], table[code & 127])


def encode_e2m1(x: Tensor) -> Tensor:
    """fp64 ``[..., 2n]`` -> E2M1, two codes a byte, the even element in the low nibble; saturating, -0 is code 8."""
    code = nearest_code(x, E2M1_MAGNITUDES) | (x.signbit().long() << 3)
    return (code[..., 0::2] | (code[..., 1::2] << 4)).to(torch.uint8)


def decode_e2m1(data: Tensor) -> Tensor:
    """Packed E2M1 ``[..., n]`` -> fp64 ``[..., 2n]``."""
    table = torch.tensor(E2M1_MAGNITUDES, dtype=torch.float64)
    table = torch.cat([table, -table])
    byte = data.long()
    return torch.stack([table[byte & 15], table[byte >> 4]], dim=-1).flatten(-2)


def decode_ue8m0(codes: Tensor) -> Tensor:
    """UE8M0 bytes -> fp64 powers of two; 255 is NaN."""
    value = torch.ldexp(torch.ones_like(codes, dtype=torch.float64), codes.long() - 127)
    return value.masked_fill(codes == 255, float("nan"))


def ceiling_byte(s: Tensor) -> Tensor:
    """Byte of the smallest power of two that is not below ``s`` (fp32, positive and normal)."""
    fraction, exponent = torch.frexp(s.double())  # s = fraction * 2^exponent, 1/2 <= fraction < 1
    return torch.where(fraction == 0.5, exponent - 1, exponent) + 127


def cast(x: Tensor, fmt: str, group: int, sf: str) -> Coded:
    """``x`` ``[..., K]`` (bf16 or fp32, finite) quantised in groups along K: Q8, Q4mx, Q4nv of ``spec/model.md`` 2.0
    and the two with fp32 scales."""
    grouped = x.float().reshape(*x.shape[:-1], x.shape[-1] // group, group)
    amax = grouped.abs().amax(-1, keepdim=True)
    top = torch.tensor(E4M3_MAX if fmt == "e4m3" else E2M1_MAX)
    floor = torch.tensor(1e-4 if fmt == "e4m3" else 6 * 2.0**-126)
    if sf == "ue8m0":
        code = ceiling_byte(torch.maximum(amax, floor) / top)
        scale = decode_ue8m0(code)
        over = grouped.double() / scale
        stored = code.to(torch.uint8)
    elif sf == "e4m3":
        amax = torch.maximum(amax, torch.tensor(6 * 2.0**-9))
        sixth = torch.tensor(1.0) / torch.tensor(6.0)
        stored = encode_e4m3(torch.minimum(amax * sixth, torch.tensor(E4M3_MAX)).double())
        scale = decode_e4m3(stored)
        over = (grouped * (torch.tensor(1.0) / scale.float())).double()
    else:
        amax = torch.maximum(amax, floor)
        stored = amax / top
        scale = stored.double()
        over = (grouped * (top / amax)).double()
    over = over.reshape(x.shape)
    data = encode_e4m3(over) if fmt == "e4m3" else encode_e2m1(over)
    return Coded(data, stored.squeeze(-1), decode(data, stored.squeeze(-1), fmt, group, sf))


def decode(data: Tensor, sf: Tensor, fmt: str, group: int, kind: str) -> Tensor:
    """fp64 values ``[..., K]`` of codes and their scales ``[..., K / group]``."""
    codes = decode_e4m3(data) if fmt == "e4m3" else decode_e2m1(data)
    scale = decode_ue8m0(sf) if kind == "ue8m0" else decode_e4m3(sf) if kind == "e4m3" else sf.double()
    grouped = codes.reshape(*codes.shape[:-1], codes.shape[-1] // group, group)
    return (grouped * scale.unsqueeze(-1)).reshape(codes.shape)


def codes_of(data: Tensor, fmt: str) -> Tensor:
    """One code an element: for counting codes that differ."""
    byte = data.long()
    return byte if fmt == "e4m3" else torch.stack([byte & 15, byte >> 4], dim=-1).flatten(-2)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """fp64 ``x`` after one rounding to ``dtype``, as fp64 again."""
    return x.to(dtype).double()
