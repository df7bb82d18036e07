"""How far apart two numbers are, counted in numbers of a format."""

from __future__ import annotations

import struct


def ulps(a: float, b: float, form: str) -> int | None:
    """How many values of the format ``f`` (FP32) or ``d`` (FP64) lie between; None: one is no value of it."""
    integer = {"f": "i", "d": "q"}[form]
    steps: list[int] = []
    for value in (a, b):
        try:
            packed = struct.pack(form, value)
        except OverflowError:
            return None
        if struct.unpack(form, packed)[0] != value:
            return None
        [bits] = struct.unpack(integer, packed)
        steps.append(bits if bits >= 0 else -(bits & ((1 << (8 * len(packed) - 1)) - 1)))
    return abs(steps[0] - steps[1])
