"""The scorer ``exact_match``: the answer is the expected text, white space at its ends and its width apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepinfer_core.types import Score, ScoreExample
from deepinfer_eval.scorers.extraction import extracted
from deepinfer_eval.scorers.parameters import Parameters, wrong_answer


class ExactMatch:
    """Implements `deepinfer_core.interfaces.Scorer`. An item expects a text, or a list of texts, any of which is right.

    :param params: ``ignore_case``; ``extract``: a regular expression whose last match, or the group in it, is compared
        in place of the whole answer.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        given = Parameters("exact_match", params, ("ignore_case", "extract"))
        self._ignore_case = given.flag("ignore_case")
        self._extract = given.pattern("extract")

    def check(self, expected: Any) -> None:
        listed = expected if isinstance(expected, list) else [expected]
        if not listed or not all(isinstance(item, str) and item.strip() for item in listed):
            raise wrong_answer(expected, "a text that is not empty, or a list of such texts")

    def score(self, text: str, expected: Any) -> Score:
        found = text if self._extract is None else extracted(text, self._extract)
        plain = None if found is None else self._plain(found)
        if not plain:
            return Score(False, None)
        wanted = expected if isinstance(expected, list) else [expected]
        return Score(plain in map(self._plain, wanted), plain)

    def examples(self) -> Sequence[ScoreExample]:
        return _EXAMPLES if self._extract is None else ()  # what a pattern matches is not known here

    def _plain(self, text: str) -> str:
        plain = " ".join(text.split())
        return plain.casefold() if self._ignore_case else plain


_EXAMPLES = (
    ScoreExample(" Paris\n", "Paris", True),
    ScoreExample("New  York", ["NYC", "New York"], True),
    ScoreExample("It is Paris.", "Paris", False),
)
