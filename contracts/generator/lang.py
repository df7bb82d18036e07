"""The `checks` language: tokens and syntax tree. No evaluation happens here.

check      := or [ "implies" check ]
or, and    := as in Python; "not" binds tighter than "and"
comparison := bits { ("<" | "<=" | "==" | "!=" | ">=" | ">") bits }       chains mean "and", as in Python
bits       := sum { "&" sum }              sum := product { ("+" | "-") product }
product    := unary { ("*" | "//" | "%") unary }
postfix    := atom { "[" index "]" | "." name | "(" arguments ")" }
index      := expression | [expression] ":" [expression] | ":" "," number
"""

from __future__ import annotations

import re
from collections.abc import Callable

from attrs import frozen

COMPARISONS = ("<=", ">=", "==", "!=", "<", ">")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.\d+(?:[eE][+-]?\d+)?|\d+)|(?P<name>[A-Za-z_]\w*)|(?P<op>//|<=|>=|==|!=|[-+*%<>&()\[\],.:]))"
)


class CheckSyntaxError(ValueError):
    """A check cannot be parsed or has a wrong type; the text shows the place."""


@frozen
class Node:
    pos: int


@frozen
class Num(Node):
    value: int | float


@frozen
class Name(Node):
    name: str


@frozen
class Attribute(Node):
    owner: str
    name: str


@frozen
class Unary(Node):
    op: str
    x: Node


@frozen
class Binary(Node):
    op: str
    a: Node
    b: Node


@frozen
class Subscript(Node):
    x: Node
    index: Node


@frozen
class Slice(Node):
    x: Node
    low: Node | None
    high: Node | None


@frozen
class Column(Node):
    x: Node
    column: int


@frozen
class Call(Node):
    name: str
    args: tuple[Node, ...]


def fail(text: str, pos: int, why: str) -> CheckSyntaxError:
    return CheckSyntaxError(f"{why}\n    {text}\n    {' ' * pos}^")


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []
        pos = 0
        end = len(text.rstrip())
        while pos < end:
            m = _TOKEN.match(text, pos)
            if not m:
                at = pos + len(text[pos:]) - len(text[pos:].lstrip())
                raise fail(text, at, f"unexpected character {text[at]!r}")
            kind = str(m.lastgroup)
            self.tokens.append((kind, m.group(kind), m.start(kind)))
            pos = m.end()
        self.tokens.append(("end", "", len(text)))
        self.at = 0

    @property
    def value(self) -> str:
        return self.tokens[self.at][1]

    @property
    def pos(self) -> int:
        return self.tokens[self.at][2]

    def take(self, *values: str) -> str | None:
        if self.tokens[self.at][0] != "number" and self.value in values:
            self.at += 1
            return self.tokens[self.at - 1][1]
        return None

    def need(self, value: str) -> None:
        if not self.take(value):
            raise fail(self.text, self.pos, f"expected {value!r}, got {self.value or 'the end'!r}")

    def check(self) -> Node:
        left = self.disjunction()
        pos = self.pos
        if self.take("implies"):
            return Binary(pos, "implies", left, self.check())
        return left

    def _left(self, ops: tuple[str, ...], operand: Callable[[], Node]) -> Node:
        left = operand()
        while True:
            pos = self.pos
            op = self.take(*ops)
            if not op:
                return left
            left = Binary(pos, op, left, operand())

    def disjunction(self) -> Node:
        return self._left(("or",), self.conjunction)

    def conjunction(self) -> Node:
        return self._left(("and",), self.negation)

    def negation(self) -> Node:
        pos = self.pos
        if self.take("not"):
            return Unary(pos, "not", self.negation())
        return self.comparison()

    def comparison(self) -> Node:
        left = self.bits()
        out: Node | None = None
        while True:
            pos = self.pos
            op = self.take(*COMPARISONS)
            if not op:
                return out or left
            right = self.bits()
            one = Binary(pos, op, left, right)
            out = one if out is None else Binary(pos, "and", out, one)
            left = right

    def bits(self) -> Node:
        return self._left(("&",), self.sum)

    def sum(self) -> Node:
        return self._left(("+", "-"), self.product)

    def product(self) -> Node:
        return self._left(("*", "//", "%"), self.unary)

    def unary(self) -> Node:
        pos = self.pos
        if self.take("-"):
            return Unary(pos, "-", self.unary())
        return self.postfix()

    def postfix(self) -> Node:
        node = self.atom()
        while True:
            pos = self.pos
            if self.take("["):
                node = self.subscript(node, pos)
            elif self.take("."):
                kind, name, at = self.tokens[self.at]
                if not isinstance(node, Name) or kind != "name":
                    raise fail(self.text, at, "expected Enum.MEMBER or step.field")
                self.at += 1
                node = Attribute(node.pos, node.name, name)
            elif self.take("("):
                if not isinstance(node, Name):
                    raise fail(self.text, pos, "only a name can be called")
                node = Call(node.pos, node.name, self.arguments())
            else:
                return node

    def arguments(self) -> tuple[Node, ...]:
        args: list[Node] = []
        if self.take(")"):
            return ()
        while True:
            args.append(self.check())
            if self.take(")"):
                return tuple(args)
            self.need(",")

    def subscript(self, x: Node, pos: int) -> Node:
        low: Node | None = None
        if self.take(":"):
            if self.take(","):
                kind, text, at = self.tokens[self.at]
                if kind != "number" or not text.isdigit():
                    raise fail(self.text, at, "a column is a number")
                self.at += 1
                self.need("]")
                return Column(pos, x, int(text))
        else:
            low = self.check()
            if self.take("]"):
                return Subscript(pos, x, low)
            self.need(":")
        high = None if self.value == "]" else self.check()
        self.need("]")
        return Slice(pos, x, low, high)

    def atom(self) -> Node:
        kind, text, pos = self.tokens[self.at]
        if kind == "number":
            self.at += 1
            return Num(pos, float(text) if "." in text else int(text))
        if self.take("("):
            inner = self.check()
            self.need(")")
            return inner
        if kind == "name" and text not in ("and", "or", "not", "implies"):
            self.at += 1
            return Name(pos, text)
        raise fail(self.text, pos, f"expected a value, got {text or 'the end'!r}")


def parse(text: str) -> Node:
    """The syntax tree of one check. Raises CheckSyntaxError showing the place."""
    p = _Parser(text)
    node = p.check()
    if p.tokens[p.at][0] != "end":
        raise fail(text, p.pos, f"unexpected {p.value!r}")
    return node
