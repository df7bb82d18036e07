"""What a scorer keeps to, whatever it compares (``interfaces.Scorer``)."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.errors import InvalidParameter
from deepinfer_core.interfaces import Scorer
from deepinfer_core.types import Score, ScoreExample

pytestmark = pytest.mark.hook("deepinfer_scorer_create")

ODD_TEXTS = {
    "empty": "",
    "white space": " \n\t ",
    "a null character": "\x00",
    "half a surrogate pair": "\ud800 is the answer",
    "no Latin letter": "答えは四十二です",
    "unclosed brackets": "\\boxed{\\frac{1}{2 (((",
    "a long line": "so 1,000 or (a) or " * 20_000,
    "many lines": "7\n" * 50_000,
}
ODD_EXPECTED: tuple[Any, ...] = (None, True, 0, -1, 2**70, 1e308, "", " ", "A", "(", [], ["A", 1], {}, {"a": None})


def judged(scorer: Scorer, text: str, expected: Any) -> Score:
    """The score, checked for its form."""
    try:
        score = scorer.score(text, expected)
    except Exception as error:  # also of an answer that nobody foresaw: it would end the scoring of all others
        fail("score raised for an answer", error=repr(error), text=text[:80], expected=repr(expected))
    require(isinstance(score, Score), "score returned something else than a Score", got=type(score).__name__)
    require(isinstance(score.correct, bool), "correct is no bool", got=repr(score.correct))
    require(score.found is None or isinstance(score.found, str), "found is no text", got=repr(score.found))
    require(not score.correct or score.found is not None, "an answer is right in which nothing was found", text=text)
    return score


def examples_of(scorer: Scorer) -> list[ScoreExample]:
    return list(scorer.examples())


@pytest.mark.level("smoke")
def test_examples_are_judged_as_they_say(make_scorer: Any, part: Any) -> None:
    scorer = make_scorer()
    require(isinstance(scorer, Scorer), "it is no Scorer")
    examples = examples_of(scorer)
    require(all(isinstance(item, ScoreExample) for item in examples), "examples are no ScoreExamples")
    for correct in () if part.params else (True, False):
        require(any(item.correct is correct for item in examples), "one kind of example is missing", correct=correct)
    for item in examples:
        scorer.check(item.expected)
        score = judged(scorer, item.text, item.expected)
        require_equal(score.correct, item.correct, "an example is judged otherwise", text=item.text, found=score.found)


@pytest.mark.level("core")
@pytest.mark.parametrize("name", ODD_TEXTS, ids=lambda name: name.replace(" ", "-"))
def test_any_text_gets_a_score(make_scorer: Any, name: str) -> None:
    """A model may write anything, and one odd answer must not cost the others their scores."""
    scorer = make_scorer()
    for item in examples_of(scorer):
        judged(scorer, ODD_TEXTS[name], item.expected)


@pytest.mark.level("core")
def test_what_check_lets_pass_can_be_scored(make_scorer: Any) -> None:
    scorer = make_scorer()
    for expected in ODD_EXPECTED:
        try:
            scorer.check(expected)
        except InvalidParameter as error:
            require(error.remedy or error.reason, "the refusal does not say what may stand there", got=str(error))
            continue
        except Exception as error:
            fail("check raised something else than InvalidParameter", error=repr(error), expected=repr(expected))
        for item in examples_of(scorer):
            judged(scorer, item.text, expected)


@pytest.mark.level("core")
def test_the_same_answer_gets_the_same_score_again(make_scorer: Any) -> None:
    """Whatever was judged in between, and by another scorer of the same parameters."""
    scorer = make_scorer()
    examples = examples_of(scorer)
    first = [judged(scorer, item.text, item.expected) for item in examples]
    backwards = [judged(scorer, item.text, item.expected) for item in reversed(examples)][::-1]
    require_equal(backwards, first, "another order of answers gives other scores")
    other = make_scorer()
    require_equal([judged(other, item.text, item.expected) for item in examples], first, "another scorer differs")


@pytest.mark.level("core")
def test_what_is_expected_stays_as_it_is(make_scorer: Any) -> None:
    scorer = make_scorer()
    for item in examples_of(scorer):
        expected = copy.deepcopy(item.expected)
        scorer.check(expected)
        judged(scorer, item.text, expected)
        require_equal(expected, item.expected, "it changed what an item expects", text=item.text)


@pytest.mark.level("core")
def test_unknown_parameter_is_refused_with_its_name(make_scorer: Any, part: Any) -> None:
    unknown = "no_such_parameter_of_any_scorer"
    try:
        make_scorer({**part.params, unknown: 1})
    except Exception as error:  # whatever it raises stops the command that brought the parameter
        require(unknown in str(error) + str(error.__cause__ or ""), "the error does not name the parameter", got=error)
        return
    fail("a parameter that it does not know was taken", remedy="raise InvalidParameter for what is not used")
