"""A parsed expression as the right side of a grammar rule.

The compiler has parsers of its own for regular expressions,
one for requests and one for patterns of schemas. The second
loses count where two alternatives begin alike (``x|x{0,2}`` matches ``xxx`` there), so none of them is used. Characters
go out as themselves or as ``\\uXXXX``, classes as positive sets: a negated one would include surrogates.
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


def rule(node: Node) -> str:
    """``node`` as the right side of a rule."""
    if isinstance(node, Chars):
        return _set(node.ranges)
    if isinstance(node, Repeat):
        return f"({rule(node.part)}){_bounds(node.least, node.most)}" if node.most != 0 else '""'
    if isinstance(node, Choice):
        return " | ".join(rule(branch) for branch in node.branches)
    return " ".join(_parts(node)) or '""'


def _parts(node: Sequence) -> list[str]:
    out: list[str] = []
    run = ""  # characters that stand alone become one string
    for part in node.parts:
        if isinstance(part, Chars) and len(part.ranges) == 1 and part.ranges[0][0] == part.ranges[0][1]:
            run += _char(part.ranges[0][0])
            continue
        if run:
            out.append(f'"{run}"')
            run = ""
        out.append(f"({rule(part)})" if isinstance(part, Choice) else rule(part))
    return [*out, f'"{run}"'] if run else out


def _bounds(least: int, most: int | None) -> str:
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
    if (least, most) in simple:
        return simple[least, most]
    return f"{{{least},{'' if most is None else most}}}" if least != most else f"{{{least}}}"


def _set(ranges: Ranges) -> str:
    # Escapes are read before the '^' of a negation is looked for: that character never comes first.
    ordered = sorted(ranges, key=lambda item: item[0] == ord("^"))
    if len(ordered) == 1 and ordered[0][0] == ordered[0][1]:
        return f'"{_char(ordered[0][0])}"'
    if ordered[0][0] == ord("^"):
        ordered = [(0x5F, ordered[0][1]), (0x5E, 0x5E)]
    items = (_char(low) if low == high else f"{_char(low)}-{_char(high)}" for low, high in ordered)
    return f"[{''.join(items)}]"


def _char(code: int) -> str:
    char = chr(code)
    if char.isascii() and not char.isalnum():
        return f"\\u{code:04x}"  # \x would swallow the hexadecimal digits after it
    return char
