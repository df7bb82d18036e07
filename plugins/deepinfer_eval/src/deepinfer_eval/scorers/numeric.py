"""The scorer ``numeric``: the answer's number is the expected one, as numbers and not as text.

The number is that of ``extract``, else the one in the last ``\\boxed{...}``, else the first behind the last ``answer
is`` or ``Answer:``, else the last of the text. Numbers are compared as fractions: 0.5, 1/2, \\frac{1}{2} and 5e-1 are
equal, and 0.1 + 0.2 is 0.3. A percent or currency sign beside a number says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from deepinfer_core.types import Score, ScoreExample
from deepinfer_eval.scorers.extraction import boxed, extracted, said
from deepinfer_eval.scorers.parameters import Parameters, wrong_answer

MAX_DIGITS = 400
"""Digits of a number, and its exponent: beyond them it is no answer, and arithmetic would take long."""

_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+)?(?<=\d)(?:[eE][-+]?\d{1,3})?"
_FRACTION = r"\\[dt]?frac\s*\{\s*(?P<top>\d+)\s*\}\s*\{\s*(?P<bottom>\d+)\s*\}"
_NUMBER = re.compile(
    r"(?=[-+\u2212.\\\d])(?P<sign>(?<![\w)\]}])[-+\u2212])?"  # where a number can begin; a hyphen behind one is no sign
    rf"(?:{_FRACTION}|(?P<left>{_DECIMAL})(?:\s?/\s?(?P<right>\d+))?)",
    re.ASCII,
)


class Numeric:
    """Implements `deepinfer_core.interfaces.Scorer`. An item expects a number, or a text that is one.

    :param params: ``rel_tol`` and ``abs_tol``, 0 unless given: as ``math.isclose`` has them, ``rel_tol`` of what is
        expected; ``extract``: a regular expression whose last match, or the group in it, has the number.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        given = Parameters("numeric", params, ("rel_tol", "abs_tol", "extract"))
        self._rel_tol = Fraction(given.number("rel_tol"))
        self._abs_tol = Fraction(given.number("abs_tol"))
        self._extract = given.pattern("extract")

    def check(self, expected: Any) -> None:
        if value_of(expected) is None:
            raise wrong_answer(expected, f"a number, or a text that is one, of at most {MAX_DIGITS} digits")

    def score(self, text: str, expected: Any) -> Score:
        found, wanted = self._number(text), value_of(expected)
        if found is None or wanted is None:
            return Score(False, None)
        shown, value = found
        return Score(abs(value - wanted) <= max(self._abs_tol, self._rel_tol * abs(wanted)), shown)

    def examples(self) -> Sequence[ScoreExample]:
        if self._extract is not None:  # what a pattern matches is not known here
            return ()
        return (
            ScoreExample("3 * 14 = 42, so the answer is 42.", 42, True),
            ScoreExample(r"Hence \boxed{\frac{1}{2}} of the 12 balls.", "0.5", True),
            ScoreExample("In total $1,234.50", 1234.5, True),
            ScoreExample("I do not know.", 42, False),
        )

    def _number(self, text: str) -> tuple[str, Fraction] | None:
        if self._extract is not None:
            return _last(extracted(text, self._extract) or "")
        inside = boxed(text)
        if inside is not None:
            return _last(inside)
        return _first(_NUMBER.finditer(said(text) or "")) or _last(text)


def _last(text: str) -> tuple[str, Fraction] | None:
    return _first(reversed(list(_NUMBER.finditer(text))))


def _first(matches: Iterable[re.Match[str]]) -> tuple[str, Fraction] | None:
    """The first number, as it is written and as it is; those that are too long are left out."""
    for match in matches:
        value = _value(match)
        if value is not None:
            return match[0], value
    return None


def value_of(expected: Any) -> Fraction | None:
    """What an item expects, as a number; None: it is none."""
    if isinstance(expected, bool) or not isinstance(expected, int | float | str):
        return None
    match = _NUMBER.fullmatch(expected.strip() if isinstance(expected, str) else _text_of(expected))
    return None if match is None else _value(match)


def _text_of(number: float) -> str:
    return "" if isinstance(number, int) and abs(number) >= 10**MAX_DIGITS else repr(number)


def _value(match: re.Match[str]) -> Fraction | None:
    if len(match[0]) > MAX_DIGITS:
        return None
    top, bottom = match["top"] or match["left"], match["bottom"] or match["right"] or "1"
    if not top or not int(bottom):
        return None
    value = Fraction(top.replace(",", "")) / int(bottom)
    return -value if match["sign"] in ("-", "\u2212") else value
