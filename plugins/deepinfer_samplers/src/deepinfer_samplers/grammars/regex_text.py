"""Writing a parsed expression for the compiler, in the few forms that it reads as everybody does.

ASCII characters but letters and digits go out as ``\\uXXXX``, all others as themselves (the compiler has two parsers, and
one of them lacks ``\\U``), ``.`` and negated classes as sets (in a negation the compiler
includes surrogates), groups without names.
"""

from __future__ import annotations

from deepinfer_samplers.grammars import charset
from deepinfer_samplers.grammars.charset import Ranges
from deepinfer_samplers.grammars.regex import Chars, Choice, Node, Repeat, Sequence


def within(node: Node, allowed: Ranges) -> Node | None:
    """The part of the language whose characters all lie in ``allowed``; None if that is nothing."""
    if isinstance(node, Chars):
        kept = charset.intersection(node.ranges, allowed)
        return Chars(kept) if kept else None
    if isinstance(node, Repeat):
        inner = within(node.part, allowed)
        if inner is not None:
            return Repeat(inner, node.least, node.most)
        return None if node.least else Sequence(())
    if isinstance(node, Sequence):
        parts = [within(part, allowed) for part in node.parts]
        return None if None in parts else Sequence(tuple(part for part in parts if part is not None))
    branches = tuple(b for b in (within(branch, allowed) for branch in node.branches) if b is not None)
    return Choice(branches) if branches else None


def written(node: Node) -> str:
    """``node`` as the compiler reads it."""
    if isinstance(node, Chars):
        return _set(node.ranges)
    if isinstance(node, Repeat):
        if node.most == 0:
            return ""
        return f"{_atom(node.part)}{_bounds(node.least, node.most)}"
    if isinstance(node, Sequence):
        return "".join(f"(?:{written(p)})" if isinstance(p, Choice) else written(p) for p in node.parts)
    return "|".join(written(branch) for branch in node.branches)


def _atom(node: Node) -> str:
    return written(node) if isinstance(node, Chars) else f"(?:{written(node)})"


def _bounds(least: int, most: int | None) -> str:
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
    if (least, most) in simple:
        return simple[least, most]
    return f"{{{least},{'' if most is None else most}}}" if least != most else f"{{{least}}}"


def _set(ranges: Ranges) -> str:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _char(ranges[0][0])
    return f"[{_items(ranges)}]"


def _items(ranges: Ranges) -> str:
    # The compiler reads escapes before it looks for the '^' of a negation: that character never comes first.
    ordered = sorted(ranges, key=lambda item: item[0] == ord("^"))
    return "".join(_char(low) if low == high else f"{_char(low)}-{_char(high)}" for low, high in ordered)


def _char(code: int) -> str:
    char = chr(code)
    if char.isascii() and not char.isalnum():
        return f"\\u{code:04x}"  # \x would swallow the hexadecimal digits after it
    return char
