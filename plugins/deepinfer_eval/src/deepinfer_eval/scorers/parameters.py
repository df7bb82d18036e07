"""Parameters of scorers: whoever runs an evaluation types them, so they may be anything."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from deepinfer_core.errors import InvalidParameter

MAX_PATTERN = 10_000
"""Characters of a regular expression."""


class Parameters:
    """Those of one scorer, read one by one.

    :param known: All names that the scorer has.
    :raises InvalidParameter: there is another name among ``given``.
    """

    def __init__(self, scorer: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
        self._scorer = scorer
        self._given = given
        unknown = ", ".join(repr(key) for key in sorted(given.keys() - set(known)))
        if unknown:
            raise InvalidParameter(
                f"scorer {scorer!r} does not know {unknown}",
                reason=f"its parameters are: {', '.join(known)}",
                remedy=f"remove {unknown}",
            )

    def flag(self, name: str) -> bool:
        """True or false; false where it is not given."""
        value = self._given.get(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def number(self, name: str) -> float:
        """A finite number of at least 0; 0 where it is not given."""
        value = self._given.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise self._wrong(name, value, "a finite number of at least 0")
        return value

    def count(self, name: str, low: int, high: int, default: int) -> int:
        """An integer from ``low`` to ``high``."""
        value = self._given.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, value, f"an integer from {low} to {high}")
        return value

    def pattern(self, name: str) -> re.Pattern[str] | None:
        """A regular expression of Python with one group at most; None where it is not given."""
        value = self._given.get(name)
        if value is None:
            return None
        found = compiled(value)
        if isinstance(found, str):
            raise self._wrong(name, value, f"a regular expression of Python ({found})")
        if found.groups > 1:
            raise self._wrong(name, value, "a regular expression with one group at most, which holds the answer")
        return found

    def _wrong(self, name: str, value: Any, allowed: str) -> InvalidParameter:
        shown = repr(value)
        return InvalidParameter(
            f"{name} of scorer {self._scorer!r} is {shown[:80]}; allowed: {allowed}",
            remedy=f"change {name}, or leave it out",
            details={"field": name, "value": shown[:200]},
        )


def compiled(value: Any, flags: int = 0) -> re.Pattern[str] | str:
    """The regular expression, or why ``value`` is none."""
    if not isinstance(value, str) or not value:
        return "a text with at least one character"
    if len(value) > MAX_PATTERN:
        return f"at most {MAX_PATTERN} characters"
    try:
        return re.compile(value, flags)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)


def wrong_answer(expected: Any, allowed: str) -> InvalidParameter:
    """The refusal of what an item expects."""
    return InvalidParameter(
        f"the expected answer is {expected!r:.80}",
        reason=f"the scorer compares with {allowed}",
        remedy="correct the answer of this item, or choose another scorer",
    )
