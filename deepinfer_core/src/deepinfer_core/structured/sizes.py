"""Limits of schemas, checked before a compiler sees them: a short text can stand for a huge automaton."""

from __future__ import annotations

import json
import re

from attrs import define

from deepinfer_core.errors import InvalidParameter

MAX_BYTES = 1 << 20
"""Of a schema, a grammar or a regular expression."""
MAX_DEPTH = 128
"""Of brackets in each other."""
MAX_EXPANDED = 1 << 16
"""Characters of a regular expression or rule with every bounded repetition written out."""


def check_text(name: str, kind: str, text: str) -> None:
    """Raise InvalidParameter for a text that is not UTF-8, too long, or too large when repetitions are written out.

    :param kind: ``json``, ``regex``, ``ebnf``, ...: repetitions are looked for in the second and the third.
    """
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as err:
        raise _refused(name, f"is not UTF-8 (character {err.start})", "pass UTF-8 text") from None
    if size > MAX_BYTES:
        raise _too_large(name, f"has {size} bytes", MAX_BYTES, "split it, or shorten it")
    if kind not in ("regex", "ebnf", "grammar"):
        return
    measured = measure(text, quotes=kind != "regex")
    if measured.depth > MAX_DEPTH:
        raise _too_large(name, f"nests {measured.depth} groups", MAX_DEPTH, "nest fewer")
    if measured.size > MAX_EXPANDED:
        what = f"stands for {measured.size} characters with its repetitions written out"
        raise _too_large(name, what, MAX_EXPANDED, "lower the bounds of its repetitions, or leave the upper one open")


def check_json(name: str, text: str) -> None:
    """Raise InvalidParameter for a text that is not JSON, no object or boolean, or nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_large(name, "nests too many objects and lists", MAX_DEPTH, "use $defs and $ref") from None
    except ValueError as err:
        raise _refused(name, "is not JSON", "give a JSON schema", reason=str(err)) from None
    depth = _json_depth(value)
    if depth > MAX_DEPTH:
        raise _too_large(name, f"nests {depth} objects and lists", MAX_DEPTH, "use $defs and $ref")
    if not isinstance(value, dict | bool):
        raise _refused(name, f"is JSON of a {type(value).__name__}", "give a JSON schema: an object, true or false")


def _json_depth(value: object) -> int:
    """Objects and lists in each other."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


_BOUND = re.compile(r"\s*(\d+)\s*(?:,\s*(\d*)\s*)?\}", re.ASCII)


@define
class Measured:
    """``size``: characters with every ``{m,n}`` written out; ``depth``: groups in each other."""

    size: int
    depth: int


def measure(text: str, *, quotes: bool) -> Measured:
    """Of a regular expression, or of rules whose literals are in quotes. A text that is not well formed is measured as
    far as it goes: whether it is one is for the compiler to say."""
    sizes, last = [0], [0]  # of each open group: what it holds so far, and how much of that its last item is
    deepest, at = 0, 0
    while at < len(text):
        char = text[at]
        at += 1
        if char in "*+?" or char == "|":
            last[-1] = last[-1] if char != "|" else 0
            continue
        if char == "{":
            factor, at = _bound(text, at)
            sizes[-1] += last[-1] * (factor - 1)
            last[-1] *= factor
            continue
        if char == "(":
            sizes.append(0)
            last.append(0)
            deepest = max(deepest, len(sizes) - 1)
            continue
        item = 1
        if char == ")" and len(sizes) > 1:
            item = sizes.pop()
            last.pop()
        elif char == "\\":
            at = _escape_end(text, at)
        elif char == "[":
            at = _class_end(text, at)
        elif char == '"' and quotes:
            end = _quote_end(text, at)
            item, at = end - at, end
        elif char == "#" and quotes:
            at = (text.find("\n", at) + 1) or len(text)
            continue
        elif char.isspace() and quotes:
            continue
        sizes[-1] += item
        last[-1] = item
    while len(sizes) > 1:  # groups that are not closed
        size = sizes.pop()
        sizes[-1] += size
    return Measured(sizes[0], deepest)


def _bound(text: str, at: int) -> tuple[int, int]:
    """The largest number of ``m}``, ``m,}`` or ``m,n}``, at least 1, and where it ends; 1 for any other brace."""
    found = _BOUND.match(text, at)
    if found is None:
        return 1, at
    numbers = [int(part) if len(part) < 10 else 10**9 for part in found.groups() if part]
    return max(1, *numbers), found.end()


def _escape_end(text: str, at: int) -> int:
    """Behind what follows a backslash; ``\\p{L}`` and ``\\x{41}`` have braces that repeat nothing."""
    if text[at : at + 1] in tuple("pPxuN") and text[at + 1 : at + 2] == "{":
        return (text.find("}", at) + 1) or len(text)
    return at + 1


def _class_end(text: str, at: int) -> int:
    if text[at : at + 1] == "^":
        at += 1
    if text[at : at + 1] == "]":
        at += 1
    while at < len(text) and text[at] != "]":
        at += 2 if text[at] == "\\" else 1
    return at + 1


def _quote_end(text: str, at: int) -> int:
    while at < len(text) and text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return at + 1


def _refused(name: str, what: str, remedy: str, *, reason: str = "") -> InvalidParameter:
    return InvalidParameter(f"{name} {what}", reason=reason, remedy=remedy, details={"field": name})


def _too_large(name: str, what: str, limit: int, remedy: str) -> InvalidParameter:
    return InvalidParameter(
        f"{name} {what}; at most {limit} are allowed", remedy=remedy, details={"field": name, "limit": limit}
    )
