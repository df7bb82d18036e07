"""E4M3, E2M1 and their scales by arithmetic on bits, for the kernels: the codes of ``spec/kernels.md`` 1.1 on any
compiler."""

import tilelang.ascend.language as T

from deepinfer_ascend.tl.numbers import is_nan

GROUP = 32
FLOOR, LARGEST = 1e-4, 448.0
FLOORS, TOPS = {"e4m3": FLOOR, "e2m1": 6.0 * 2.0**-126}, {"e4m3": LARGEST, "e2m1": 6.0}
"""Of a group's largest size where its scale is UE8M0, and of an element."""
FLOOR_OF_E4M3_SCALE, SIXTH = 6.0 * 2.0**-9, 1.0 / 6.0
BIAS = 120
"""Exponent of fp32 less that of E4M3."""
SMALLEST_NORMAL = 2.0**-6
MAGIC = 1.5 * 2.0**23
"""Added to a small number, it leaves the number, rounded to even, in the low bits."""


def exponent_of(peak, top: float = LARGEST):
    """Byte of the smallest power of two that is at least ``peak / top``."""
    return ((T.reinterpret(peak / T.float32(top), T.int32) - 1) >> 23) + 1


def inverse_of(exponent):
    """What quantising multiplies by: two to the power that the byte stands for, inverted. A group with an infinity has
    255, and 0 of everything else; one with a NaN has 256, which is written as 0, and the largest code of all else."""
    beyond = T.if_then_else(exponent == 255, T.float32(0), T.infinity(T.float32))
    return T.if_then_else(exponent < 255, T.reinterpret((254 - exponent) << 23, T.float32), beyond)


def encoded(value):
    """Code of ``value`` fp32 in int32, saturating, the sign of zero kept, and NaN."""
    size = T.abs(value)
    bits = T.reinterpret(size, T.int32)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (BIAS << 3)
    small = T.reinterpret(size * 512.0 + MAGIC, T.int32) & 15
    known = T.if_then_else(size < SMALLEST_NORMAL, small, T.min(normal, 0x7E))
    code = T.if_then_else(is_nan(value), 0x7F, known)
    return code | ((T.reinterpret(value, T.int32) >> 24) & 0x80)


def decoded(code):
    """fp32 value of a code in int32."""
    size = code & 0x7F
    normal = T.reinterpret((size << 20) + (BIAS << 23), T.float32)
    known = T.if_then_else(size < 8, T.cast(size, T.float32) * (2.0**-9), normal)
    value = T.if_then_else(size == 0x7F, T.float32(float("nan")), known)
    return T.if_then_else(code >= 0x80, -value, value)


def scale_of(byte):
    """fp32 power of two of a byte in int32; 255 is NaN."""
    known = T.if_then_else(byte == 0, 0x00400000, byte << 23)
    return T.reinterpret(T.if_then_else(byte == 255, 0x7FC00000, known), T.float32)


def encoded_e2m1(value):
    """Code of ``value`` fp32 in int32, saturating, ties to the even code, the sign of zero kept."""
    size = T.min(T.abs(value), T.float32(6))
    low = T.reinterpret(size * T.float32(2) + T.float32(MAGIC), T.int32) & 15
    middle = (T.reinterpret(size + T.float32(MAGIC), T.int32) & 15) + 2
    high = (T.reinterpret(size * T.float32(0.5) + T.float32(MAGIC), T.int32) & 15) + 4
    code = T.if_then_else(size < T.float32(2), low, T.if_then_else(size < T.float32(4), middle, high))
    return code | ((T.reinterpret(value, T.int32) >> 28) & 8)


def decoded_e2m1(code):
    """fp32 value of a code in int32."""
    size = code & 7
    doubled = T.if_then_else(size < 4, size, T.if_then_else(size < 6, 2 * size - 4, 4 * size - 16))
    value = T.cast(doubled, T.float32) * T.float32(0.5)
    return T.if_then_else(code >= 8, -value, value)


def _at_least(peak, floor: float):
    """The larger one; a NaN stays."""
    return T.if_then_else(peak < T.float32(floor), T.float32(floor), peak)


def scale_byte(peak, fmt: str, sf: str):
    """Byte of a group's scale, int32, from its largest size: ``sf`` is ``ue8m0``, or ``e4m3`` for elements E2M1."""
    if sf == "ue8m0":
        return exponent_of(_at_least(peak, FLOORS[fmt]), TOPS[fmt])
    return encoded(_at_least(peak, FLOOR_OF_E4M3_SCALE) * T.float32(SIXTH))


def scale_value(byte, sf: str):
    """What a scale's byte multiplies by."""
    return scale_of(byte) if sf == "ue8m0" else decoded(byte)


def scale_inverse(byte, sf: str):
    """What elements of a group are multiplied by before they are rounded."""
    return inverse_of(byte) if sf == "ue8m0" else T.float32(1) / decoded(byte)


def code_of(scaled, fmt: str):
    """Code of an element, int32."""
    return encoded(scaled) if fmt == "e4m3" else encoded_e2m1(scaled)


def code_value(code, fmt: str):
    """fp32 of an element's code."""
    return decoded(code) if fmt == "e4m3" else decoded_e2m1(code)
