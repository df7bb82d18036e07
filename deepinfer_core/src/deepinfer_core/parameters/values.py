"""Values of request parameters: read into plain types, or refused with field, value and allowed range."""

from __future__ import annotations

import math
import operator
import struct

from deepinfer_core.errors import InvalidParameter

INT32_MAX = 2**31 - 1


def refuse(name: str, value: object, allowed: str) -> InvalidParameter:
    """The error for ``value`` in field ``name``; ``allowed`` describes the range."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return InvalidParameter(
        f"{name} is {shown}; allowed: {allowed}",
        details={"field": name, "value": shown, "allowed": allowed},
    )


def as_int(name: str, value: object, low: int, high: int, allowed: str) -> int:
    """``value`` as an integer in ``[low, high]``. A bool is no integer, and neither is 3.0."""
    if isinstance(value, bool):
        raise refuse(name, value, allowed)
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # whatever has __index__: int, numpy integers
    except TypeError:
        raise refuse(name, value, allowed) from None
    if not low <= number <= high:
        raise refuse(name, value, allowed)
    return number


def as_float(name: str, value: object, allowed: str) -> float:
    """``value`` as a float, finite in 32 bits too. Numbers only: no bool, no text, no NaN."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise refuse(name, value, allowed)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise refuse(name, value, allowed) from None
    if not math.isfinite(single(number)):
        raise refuse(name, value, allowed)
    return number


def single(number: float) -> float:
    """``number`` as the core keeps it, in 32 bits: what is tiny there is 0, and what is too large is infinite."""
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def as_switch(name: str, value: object) -> bool:
    """``value`` if it is a bool: 1 and "true" are not."""
    if not isinstance(value, bool):
        raise refuse(name, value, "true or false")
    return value
