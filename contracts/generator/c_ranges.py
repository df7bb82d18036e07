"""Rules that bound one array by scalars, and what they prove. They are most of level BOUNDARY."""

from __future__ import annotations

import numpy as np

from generator.c_loops import Loop, Scratch
from generator.expr import Expr

_ORDER = ("<", "<=", ">", ">=")
_INTEGERS = {"u8": "_u8", "i8": "_i8", "i16": "_i16", "i32": ""}


def part_of(e: Expr) -> Expr | None:
    """The left side of ``arange(N) < k implies ...`` (or ``>=``): the rule is about a part of the indices."""
    if e.op != "implies" or e.args[0].op not in ("<", ">="):
        return None
    index, bound = e.args[0].args
    return e.args[0] if index.op == "arange" and not bound.vector else None


def _sides(e: Expr) -> list[tuple[Expr, Expr, bool, bool]] | None:
    """(field, bound, whether the field is below it, whether strictly) of each comparison; None if ``e`` is not that."""
    out = []
    for part in e.args if e.op == "and" else (e,):
        if part.op == "finite":
            x = part.args[0]
            top = Expr("const", "float", number=float(np.finfo(np.float32).max))
            bottom = Expr("const", "float", number=-top.number)
            out += [(x, bottom, False, False), (x, top, True, False)]
            continue
        if part.op not in _ORDER or part.args[0].vector == part.args[1].vector:
            return None
        x, bound = part.args if part.args[0].vector else part.args[::-1]
        out.append((x, bound, (part.op in ("<", "<=")) == part.args[0].vector, part.op in ("<", ">")))
    if any(x.op != "field" for x, *_ in out) or len({(x.owner, x.name, x.column) for x, *_ in out}) != 1:
        return None
    return out


def range_test(e: Expr, s: Scratch) -> str:
    """C condition: the elements [first, n) are in the range that ``e`` gives for one array; "" if ``e`` is no range."""
    other = _other(e, s)
    sides = _sides(e.args[1] if other else e)
    if not sides:
        return ""
    x = sides[0][0]
    dtype = s.field_of(x.owner, x.name).dtype
    at = f"f{s.array(x.owner, x.name)} + first"
    if dtype == "f32" and x.column < 0:
        bounds = _float_bounds(sides)
        return f"di_in_range_f32({at}, n - first, {bounds})" if bounds else ""
    if dtype not in _INTEGERS or (x.column >= 0 and dtype != "i32"):
        return ""
    lows: list[str] = []
    highs: list[str] = []
    for _, bound, below, strict in sides:
        value = Loop(s).hoist(bound)
        if below:
            highs.append(f"di_sub({value}, 1)" if strict else value)
        else:
            lows.append(f"di_add({value}, 1)" if strict else value)
    if len(lows) > 1 or len(highs) > 1:
        return ""
    low, high = (lows or ["INT32_MIN"])[0], (highs or ["INT32_MAX"])[0]
    if other:
        return f"di_in_range_or({at}, n - first, {other}, {low}, {high})"
    if x.column >= 0:
        at = f"f{s.array(x.owner, x.name)} + first * {x.number} + {x.column}"
        return f"di_in_range_column({at}, n - first, {x.number}, {low}, {high})"
    return f"di_in_range{_INTEGERS[dtype]}({at}, n - first, {low}, {high})"


def _other(e: Expr, s: Scratch) -> str:
    """``k`` of ``x == k or`` a range of the same int32 array ``x``; "" if ``e`` is not that."""
    if e.op != "or" or e.args[0].op != "==":
        return ""
    x, number = e.args[0].args
    sides = _sides(e.args[1])
    if not sides or (sides[0][0].owner, sides[0][0].name) != (x.owner, x.name) or not Loop(s).is_i32(x):
        return ""
    return Loop(s).hoist(number) if number.op == "const" else ""


def _float_bounds(sides: list[tuple[Expr, Expr, bool, bool]]) -> str:
    """The bounds as floats that the same floats satisfy as the doubles that were written; "" if one is no constant."""
    low, high = np.float32(-np.inf), np.float32(np.inf)
    for _, bound, below, strict in sides:
        if bound.op != "const":
            return ""
        near = np.float32(bound.number)
        inward = np.float32(-np.inf if below else np.inf)
        outside = float(near) > bound.number if below else float(near) < bound.number
        if outside or (strict and float(near) == bound.number):
            near = np.nextafter(near, inward)
        low, high = (low, min(high, near)) if below else (max(low, near), high)
    return f"{_literal(low)}, {_literal(high)}"


def _literal(x: np.float32) -> str:
    if np.isinf(x):
        return "INFINITY" if x > 0 else "-INFINITY"
    return f"{float(x).hex()}f"


def natural_of(e: Expr, known: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Arrays of the record that have nothing below 0 where ``e`` holds: bounded by a constant, or by such an array."""
    out: set[tuple[str, str]] = set()
    for part in e.args if e.op == "and" else (e,):
        if part.op not in _ORDER:
            continue
        small, large = part.args if part.op in ("<", "<=") else part.args[::-1]
        is_natural = (small.op == "const" and small.kind == "int" and small.number >= 0) or (
            small.op == "field" and (small.owner, small.name) in known and small.column < 0
        )
        if is_natural and large.op == "field" and large.column < 0 and not large.owner:
            out.add((large.owner, large.name))
    return out
