r"""The scorer ``multiple_choice``: the answer chooses the expected letter.

The letter is that of ``extract``, else the one in the last ``\boxed{...}``, else the one behind the last ``answer is``
or ``Answer:``, else a last line that is nothing but a letter. A letter anywhere else is part of the reasoning, and not
taken for a choice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from deepinfer_core.types import Score, ScoreExample
from deepinfer_eval.scorers.extraction import boxed, extracted, said
from deepinfer_eval.scorers.parameters import Parameters, wrong_answer

_LETTER = re.compile(  # a small letter by itself may be a word
    r"(?:\\text(?:bf)?\s*\{|[Oo]ption\s|[Cc]hoice\s|[\s(\[*_$`])*(?:([A-Z])(?![\w'])|(?<=[(\[*])([a-z])(?=[)\]*]))",
    re.ASCII,
)
_ALONE = re.compile(r"[\s(\[*_$`]*(?:([A-Z])|([a-z]))[\s)\].*_$`:]*", re.ASCII)


class MultipleChoice:
    """Implements `deepinfer_core.interfaces.Scorer`. An item expects a letter.

    :param params: ``choices``: how many there are, from A on, 10 unless given; ``extract``: a regular expression whose
        last match, or the group in it, has the letter.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        given = Parameters("multiple_choice", params, ("choices", "extract"))
        self._letters = ascii_uppercase[: given.count("choices", 2, 26, default=10)]
        self._extract = given.pattern("extract")

    def check(self, expected: Any) -> None:
        if not isinstance(expected, str) or len(expected) != 1 or expected.upper() not in self._letters:
            raise wrong_answer(expected, f"a letter from A to {self._letters[-1]}")

    def score(self, text: str, expected: Any) -> Score:
        found = self._letter(text)
        return Score(found is not None and found == str(expected).upper(), found)

    def examples(self) -> Sequence[ScoreExample]:
        if self._extract is not None:  # what a pattern matches is not known here
            return ()
        return (
            ScoreExample("B is wrong, so the answer is (A).", "A", True),
            ScoreExample("**Answer:** B", "b", True),
            ScoreExample(r"\boxed{\text{A}}", "A", True),
            ScoreExample("It cannot be B.\n\n(A)", "A", True),
            ScoreExample("A thing that I do not know.", "A", False),
        )

    def _letter(self, text: str) -> str | None:
        if self._extract is not None:
            return self._chosen(_LETTER.match(extracted(text, self._extract) or ""))
        for place in (boxed(text), said(text)):
            if place is not None and (letter := self._chosen(_LETTER.match(place))):
                return letter
        tail = text.rstrip().rpartition("\n")[2]
        return self._chosen(_ALONE.fullmatch(tail)) if len(tail) <= 40 else None

    def _chosen(self, match: re.Match[str] | None) -> str | None:
        letter = "" if match is None else (match[1] or match[2]).upper()
        return letter if letter and letter in self._letters else None
