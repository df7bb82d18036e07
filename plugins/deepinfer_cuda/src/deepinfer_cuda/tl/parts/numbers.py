"""Number formats inside kernels: the functions of ``numbers.cuh``, callable from TileLang (``spec/kernels.md`` 1.1).

A kernel that uses them passes ``prelude=NUMBERS`` to ``T.Kernel``. Words are ``uint32``; a *pair* is a word of two
bf16, the even element in the low half, as it lies in memory; scales are bytes in a ``uint32``. All are exact to
the byte (nearest even, saturating, sign of zero kept), and pure: calling one twice costs nothing.

``E2M1`` decode: :func:`e2m1_pair` gives elements 2i and 2i + 1; :func:`e2m1_far_pair` gives i and i + 4 in one
instruction less, for users who do not care about order. ``* scale`` is :func:`mul2` with :func:`ue8m0_pair`, or with
:func:`pack` of an E4M3 scale twice: both products are exact in bf16.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import tilelang.language as T

NUMBERS = files(__package__).joinpath("numbers.cuh").read_text(encoding="utf-8")
"""CUDA text of the functions."""

Expr = Any


def lo(pair: Expr) -> Expr:
    """fp32 of the even element."""
    return T.call_pure_extern("float32", "di_lo", pair)


def hi(pair: Expr) -> Expr:
    """fp32 of the odd element."""
    return T.call_pure_extern("float32", "di_hi", pair)


def pack(low: Expr, high: Expr) -> Expr:
    """Two fp32, rounded, as a pair."""
    return T.call_pure_extern("uint32", "di_pack", low, high)


def mul2(a: Expr, b: Expr) -> Expr:
    """Product of two pairs, one rounding each."""
    return T.call_pure_extern("uint32", "di_mul2", a, b)


def add2(a: Expr, b: Expr) -> Expr:
    """Sum of two pairs, one rounding each."""
    return T.call_pure_extern("uint32", "di_add2", a, b)


def max2(a: Expr, b: Expr) -> Expr:
    """Larger elements of two pairs; NaN loses."""
    return T.call_pure_extern("uint32", "di_max2", a, b)


def abs2(pair: Expr) -> Expr:
    """Magnitudes of a pair."""
    return T.call_pure_extern("uint32", "di_abs2", pair)


def top(pair: Expr) -> Expr:
    """fp32: the larger of the two elements."""
    return T.call_pure_extern("float32", "di_top", pair)


def ue8m0_of(fmt: str, amax: Expr) -> Expr:
    """Scale byte (ceiling rule, floored) of a group of ``e4m3`` or ``e2m1`` with largest magnitude ``amax`` (fp32)."""
    return T.call_pure_extern("uint32", f"di_ue8m0_of_{fmt}", amax)


def ue8m0(byte: Expr) -> Expr:
    """fp32 of a scale byte; 255 is NaN."""
    return T.call_pure_extern("float32", "di_ue8m0", byte)


def ue8m0_pair(byte: Expr) -> Expr:
    """A scale byte's value, twice, as a pair."""
    return T.call_pure_extern("uint32", "di_ue8m0_pair", byte)


def ue8m0_inverse(byte: Expr) -> Expr:
    """fp32 ``2^(127 - byte)``, what data is multiplied by; 0 for byte 255."""
    return T.call_pure_extern("float32", "di_ue8m0_inverse", byte)


def ue8m0_inverse2(byte: Expr) -> Expr:
    """The same, twice, as a pair."""
    return T.call_pure_extern("uint32", "di_ue8m0_inverse2", byte)


def e4m3x4(a: Expr, b: Expr, c: Expr, d: Expr) -> Expr:
    """Four fp32, over their scale, to a word of four codes."""
    return T.call_pure_extern("uint32", "di_e4m3x4", a, b, c, d)


def e4m3x4_of_pairs(p: Expr, q: Expr) -> Expr:
    """Two pairs, over their scale, to a word of four codes."""
    return T.call_pure_extern("uint32", "di_e4m3x4_of_pairs", p, q)


def e4m3(code: Expr) -> Expr:
    """fp32 of one code."""
    return T.call_pure_extern("float32", "di_e4m3", code)


def e4m3_pair(word: Expr, i: Expr) -> Expr:
    """Codes 2i and 2i + 1 (i in 0, 1) of a word as a bf16 pair."""
    return T.call_pure_extern("uint32", "di_e4m3_pair", word, i)


def e4m3_half2(word: Expr, i: Expr) -> Expr:
    """The same as two fp16 in a word: one instruction."""
    return T.call_pure_extern("uint32", "di_e4m3_half2", word, i)


def half_lo(halves: Expr) -> Expr:
    """fp32 of the low fp16 of a word."""
    return T.call_pure_extern("float32", "di_half_lo", halves)


def half_hi(halves: Expr) -> Expr:
    """fp32 of the high fp16 of a word."""
    return T.call_pure_extern("float32", "di_half_hi", halves)


def e4m3_scale_of_e2m1(amax: Expr) -> Expr:
    """E4M3 scale code of a group of 16 E2M1 values."""
    return T.call_pure_extern("uint32", "di_e4m3_scale_of_e2m1", amax)


def reciprocal(s: Expr) -> Expr:
    """fp32(1 / s), correctly rounded."""
    return T.call_pure_extern("float32", "di_reciprocal", s)


def e2m1x8(*values: Expr) -> Expr:
    """Eight fp32, over their scale, to a word of eight codes; saturating."""
    return T.call_pure_extern("uint32", "di_e2m1x8", *values)


def e2m1x8_of_pairs(p: Expr, q: Expr, r: Expr, s: Expr, inverse: Expr) -> Expr:
    """Four pairs over a power-of-two scale, given as :func:`ue8m0_inverse2`, to a word of eight codes."""
    return T.call_pure_extern("uint32", "di_e2m1x8_of_pairs", p, q, r, s, inverse)


def e2m1_pair(word: Expr, i: Expr) -> Expr:
    """Codes 2i and 2i + 1 (i in 0..3, constant) of a word of eight as a bf16 pair."""
    return T.call_pure_extern("uint32", "di_e2m1_pair", word, i)


def e2m1_far_pair(word: Expr, i: Expr) -> Expr:
    """Codes i and i + 4 (i in 0..3, constant) of a word of eight as a bf16 pair."""
    return T.call_pure_extern("uint32", "di_e2m1_far_pair", word, i)


def square_lo(pair: Expr, total: Expr) -> Expr:
    """``total`` plus the square of the even element."""
    return T.call_pure_extern("float32", "di_square_lo", pair, total)


def square_hi(pair: Expr, total: Expr) -> Expr:
    """``total`` plus the square of the odd element."""
    return T.call_pure_extern("float32", "di_square_hi", pair, total)


def inverse_rms(total: Expr, width: int, eps: Expr) -> Expr:
    """``rsqrt(total / width + eps)``, the only one in the plugin."""
    return T.call_pure_extern("float32", "di_inverse_rms", total, T.float32(width), eps)


def normed(pair: Expr, rstd: Expr, w0: Expr, w1: Expr) -> Expr:
    """A pair times ``rstd`` times its two weights, rounded."""
    return T.call_pure_extern("uint32", "di_normed", pair, rstd, w0, w1)


def turned(pair: Expr, cosine: Expr, sine: Expr) -> Expr:
    """A pair turned by an angle, rounded; a negated sine turns it back."""
    return T.call_pure_extern("uint32", "di_turned", pair, cosine, sine)


def store16(address: Expr, value: Expr) -> Expr:
    """Two bytes to an even address: a statement."""
    return T.call_extern("int32", "di_store16", address, value)


def load_pieces(address: Expr, unit: int) -> Expr:
    """A word from an address that is a multiple of ``unit`` (2 or 1) bytes."""
    return T.call_extern("uint32", "di_load_halves" if unit == 2 else "di_load_bytes", address)


def last_marked(mask: Expr, lane: Expr) -> Expr:
    """Number of the highest set bit of ``mask`` (uint32) at or below ``lane``; -1: there is none."""
    return T.call_pure_extern("int32", "di_last_marked", mask, lane)
