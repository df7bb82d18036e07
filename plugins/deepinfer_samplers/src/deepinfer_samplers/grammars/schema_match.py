"""Whether one short string lies in an expression: for names, whose length is that of a word."""

from __future__ import annotations

from deepinfer_samplers.grammars.regex import Chars, Choice, Node, Repeat, Sequence


def matches(node: Node, text: str) -> bool:
    """Whether ``node`` matches ``text`` from start to end."""
    return len(text) in _ends(node, text, frozenset({0}))


def _ends(node: Node, text: str, starts: frozenset[int]) -> frozenset[int]:
    """Where a match may end that begins at one of ``starts``."""
    if isinstance(node, Chars):
        return frozenset(
            at + 1 for at in starts if at < len(text) and any(low <= ord(text[at]) <= high for low, high in node.ranges)
        )
    if isinstance(node, Sequence):
        for part in node.parts:
            starts = _ends(part, text, starts)
        return starts
    if isinstance(node, Choice):
        return frozenset().union(*(_ends(branch, text, starts) for branch in node.branches))
    return _repeated(node, text, starts)


def _repeated(node: Repeat, text: str, starts: frozenset[int]) -> frozenset[int]:
    reached = starts
    for _ in range(min(node.least, len(text) + 1)):
        reached = _ends(node.part, text, reached)
    found, turns = reached, node.least
    while reached and (node.most is None or turns < node.most):
        reached = _ends(node.part, text, reached) - found
        found |= reached
        turns += 1
    return found
