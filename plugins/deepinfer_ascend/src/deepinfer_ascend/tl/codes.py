"""E4M3 and UE8M0 by arithmetic on bits, for the kernels: the codes of ``spec/kernels.md`` 1.1 on any compiler."""

import tilelang.ascend.language as T

GROUP = 32
FLOOR, LARGEST = 1e-4, 448.0
BIAS = 120
"""Exponent of fp32 less that of E4M3."""
SMALLEST_NORMAL = 2.0**-6
MAGIC = 1.5 * 2.0**23
"""Added to a small number, it leaves the number, rounded to even, in the low bits."""


def exponent_of(peak):
    """Byte of the smallest power of two that is at least ``peak / 448``."""
    return ((T.reinterpret(peak / LARGEST, T.int32) - 1) >> 23) + 1


def inverse_of(exponent):
    """What quantising multiplies by: two to the power that the byte stands for, inverted."""
    return T.reinterpret((254 - exponent) << 23, T.float32)


def encoded(value):
    """Code of ``value`` fp32 in int32, saturating, the sign of zero kept."""
    size = T.abs(value)
    bits = T.reinterpret(size, T.int32)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (BIAS << 3)
    small = T.reinterpret(size * 512.0 + MAGIC, T.int32) & 15
    code = T.if_then_else(size < SMALLEST_NORMAL, small, T.min(normal, 0x7E))
    return code | ((T.reinterpret(value, T.int32) >> 24) & 0x80)


def decoded(code):
    """fp32 value of a code in int32."""
    size = code & 0x7F
    normal = T.reinterpret((size << 20) + (BIAS << 23), T.float32)
    value = T.if_then_else(size < 8, T.cast(size, T.float32) * (2.0**-9), normal)
    return T.if_then_else(code >= 0x80, -value, value)


def scale_of(byte):
    """fp32 power of two of a byte in int32, from 1 on."""
    return T.reinterpret(byte << 23, T.float32)
