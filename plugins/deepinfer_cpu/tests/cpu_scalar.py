"""Number formats one value at a time, with exact fractions: the meaning that the fast versions are compared with."""

from __future__ import annotations

import bisect
import math
import struct
from fractions import Fraction

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e4m3_value(code: int) -> float:
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    size = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if code & 128 else size


E4M3 = tuple(e4m3_value(c) for c in range(127))


def nearest(values: tuple[float, ...], x: float) -> int:
    """Index of the value nearest to ``|x|``; of two equally near ones the even index; saturates."""
    above = bisect.bisect_left(values, abs(x))
    both = [c for c in (above - 1, above) if 0 <= c < len(values)]
    return min(both, key=lambda c: (abs(Fraction(values[c]) - Fraction(abs(x))), c & 1))


def sign_bit(x: float) -> int:
    return math.copysign(1.0, x) < 0


def encode_e4m3(x: float) -> int:
    return nearest(E4M3, x) | (128 if sign_bit(x) else 0)


def encode_e2m1(x: float) -> int:
    return nearest(E2M1, x) | (8 if sign_bit(x) else 0)


def pow2_ceil_exponent(v: float) -> int:
    mantissa, exponent = math.frexp(v)
    return exponent - 1 if mantissa == 0.5 else exponent


def fp32(x: float) -> float:
    return struct.unpack("f", struct.pack("f", x))[0]


def quantise(group: list[float], fmt: str, sf: str) -> tuple[int, float, list[int]]:
    """Scale byte, scale and codes of one group of fp32 values (``spec/model.md`` 2.0)."""
    amax = max(abs(v) for v in group)
    if sf == "ue8m0":
        floor, top = (1e-4, 448.0) if fmt == "e4m3" else (6 * 2.0**-126, 6.0)
        exponent = pow2_ceil_exponent(fp32(max(fp32(floor), amax) / top))
        byte, scale = exponent + 127, 2.0**exponent
        scaled = [v / scale for v in group]
    else:
        byte = encode_e4m3(min(fp32(max(6 * 2.0**-9, amax) * fp32(1 / 6)), 448.0))
        scale = E4M3[byte]
        inverse = fp32(1 / scale)
        scaled = [fp32(v * inverse) for v in group]
    encode = encode_e4m3 if fmt == "e4m3" else encode_e2m1
    return byte, scale, [encode(v) for v in scaled]


def pack_nibbles(codes: list[int]) -> list[int]:
    return [codes[i] | codes[i + 1] << 4 for i in range(0, len(codes), 2)]


def decode(codes: list[int], scale: float, fmt: str) -> list[float]:
    if fmt == "e4m3":
        return [e4m3_value(c) * scale for c in codes]
    return [(-E2M1[c & 7] if c & 8 else E2M1[c]) * scale for c in codes]
