"""A scorer that counts words."""

from __future__ import annotations

from typing import Any

from deepinfer_core.errors import InvalidParameter
from deepinfer_core.types import Score, ScoreExample


class WordCount:
    """An answer is right if it has as many words as expected, give or take ``slack``."""

    def __init__(self, slack: int = 0) -> None:
        self.slack = slack

    def check(self, expected: Any) -> None:
        if isinstance(expected, bool) or not isinstance(expected, int):
            raise InvalidParameter(f"the answer is {expected!r}", remedy="give a number of words")

    def score(self, text: str, expected: Any) -> Score:
        count = len(text.split())
        return Score(abs(count - expected) <= self.slack, str(count))

    def examples(self) -> Any:
        return [ScoreExample("one two", 2, True), ScoreExample("one", 5 + self.slack, False)]
