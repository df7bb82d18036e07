"""Where in a text its answer stands."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

from deepinfer_eval.scorers.matching import limited

T = TypeVar("T")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_SAID = re.compile(r"answer\s*(?:\*\*)?\s*(?:is|:|=)\s*(?:\*\*)?\s*:?", re.IGNORECASE)


def last(found: Iterable[T]) -> T | None:
    """The last of ``found``; None: there is none."""
    kept = None
    for item in found:
        kept = item
    return kept


def extracted(text: str, pattern: re.Pattern[str]) -> str | None:
    """The last match of ``pattern``: its group where it has one."""
    with limited(pattern):
        match = last(pattern.finditer(text))
    return None if match is None else match[pattern.groups]


def boxed(text: str) -> str | None:
    r"""What stands in the last ``\boxed{...}``; None: there is none, or it is not closed."""
    start = last(match.end() for match in _BOXED.finditer(text))
    if start is None:
        return None
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if not depth:
            return text[start:position]
    return None


def said(text: str) -> str | None:
    """The rest of the line behind the last ``answer is`` or ``Answer:``; None: the text does not say so."""
    end = last(match.end() for match in _SAID.finditer(text))
    return None if end is None else text[end:].lstrip().partition("\n")[0]
