"""The scorer ``regex``: what an item expects is a pattern, and an answer is right if it is there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from deepinfer_core.types import Score, ScoreExample
from deepinfer_eval.scorers.matching import limited
from deepinfer_eval.scorers.parameters import Parameters, compiled, wrong_answer


class Regex:
    """Implements `deepinfer_core.interfaces.Scorer`. An item expects a regular expression of Python.

    :param params: ``ignore_case``; ``whole``: the pattern has to match the whole answer, white space at its ends apart.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        given = Parameters("regex", params, ("ignore_case", "whole"))
        self._flags = re.IGNORECASE if given.flag("ignore_case") else re.NOFLAG
        self._whole = given.flag("whole")

    def check(self, expected: Any) -> None:
        found = compiled(expected, self._flags)
        if isinstance(found, str):
            raise wrong_answer(expected, f"a regular expression of Python, and this is none: {found}")

    def score(self, text: str, expected: Any) -> Score:
        pattern = _pattern(expected, self._flags)
        with limited(pattern):
            match = pattern.fullmatch(text.strip()) if self._whole else pattern.search(text)
        return Score(match is not None, None if match is None else match[0])

    def examples(self) -> Sequence[ScoreExample]:
        return (
            ScoreExample("1969-07-20", r"(19)?69-0?7-20", True),
            ScoreExample("no date", r"\d{4}", False),
        )


@lru_cache(maxsize=4096)
def _pattern(expected: str, flags: int) -> re.Pattern[str]:
    return re.compile(expected, flags)
