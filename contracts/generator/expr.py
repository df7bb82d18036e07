"""Typed expressions: what a rule is once its names are known, shared by the numpy and C emitters.

A value is a scalar or a vector, and bool, int or float. A vector is *random* (any element can be computed alone) or
*sequential* (`cumsum`, `repeat`, `ramp`: elements come in order); `diff`, `shift`, `gather`, slices and `unique` need a
random one.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from generator import lang

ARITHMETIC = ("+", "-", "*", "//", "%", "&")
COMPARE = lang.COMPARISONS
LOGIC = ("and", "or", "implies")
FORMS = ("all", "unique", "injective", "disjoint")


@frozen
class Expr:
    """``op`` names what it is, ``args`` are operands; ``name`` and ``number`` say which field, limit or constant."""

    op: str
    kind: str = "int"  # bool, int, float
    vector: bool = False
    random: bool = True
    args: tuple[Expr, ...] = ()
    name: str = ""
    owner: str = ""  # "" or "step"
    column: int = -1
    number: int | float = 0
    low: int = 0
    high: int = 0  # elements cut from the end

    def walk(self) -> Iterator[Expr]:
        yield self
        for a in self.args:
            yield from a.walk()


def elementwise(e: Expr) -> Iterator[Expr]:
    """Parts that stand at the same index as the whole."""
    yield e
    if e.op in (*ARITHMETIC, *COMPARE, *LOGIC, "not", "neg", "where", "minimum", "maximum", "finite"):
        for a in e.args:
            yield from elementwise(a)


def witness_of(body: Expr, own: str) -> Expr:
    """The value shown in a violation: the field itself, else the left side of the last comparison."""
    parts = list(elementwise(body))
    for e in parts:
        if e.op in ("field", "scalar") and e.name == own and not e.owner:
            return e
    comparisons = [e for e in parts if e.op in COMPARE]
    return comparisons[-1].args[0] if comparisons else body
