"""Each scorer on answers as models write them."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from deepinfer_core.errors import InvalidParameter, PluginMissing
from deepinfer_eval.scorer_plugin import SCORERS, deepinfer_scorer_create


def judged(name: str, text: str, expected: Any, **params: Any) -> tuple[bool, str | None]:
    scorer = deepinfer_scorer_create(name, params)
    scorer.check(expected)
    score = scorer.score(text, expected)
    return score.correct, score.found


@pytest.mark.parametrize(
    ("text", "expected", "params", "wanted"),
    [
        ("Paris", "Paris", {}, (True, "Paris")),
        ("  New \n York ", "New York", {}, (True, "New York")),
        ("paris", "Paris", {}, (False, "paris")),
        ("paris", "Paris", {"ignore_case": True}, (True, "paris")),
        ("NYC", ["New York", "NYC"], {}, (True, "NYC")),
        (" \n ", "Paris", {}, (False, None)),
        ("A: Rome. A: Paris.", "Paris", {"extract": r"A: (\w+)"}, (True, "Paris")),
        ("Rome", "Paris", {"extract": r"A: (\w+)"}, (False, None)),
    ],
)
def test_exact_match(text: str, expected: Any, params: dict[str, Any], wanted: object) -> None:
    assert judged("exact_match", text, expected, **params) == wanted


@pytest.mark.parametrize(
    ("text", "expected", "params", "wanted"),
    [
        ("42", 42, {}, (True, "42")),
        ("So 6 * 7 = 42.", "42", {}, (True, "42")),
        ("The answer is 42, not 41.", 42, {}, (True, "42")),
        ("Answer: 7\nI used 3 steps.", 7, {}, (True, "7")),
        (r"\boxed{42} after 3 steps", 42, {}, (True, "42")),
        (r"\boxed{\frac{3}{4}}", 0.75, {}, (True, r"\frac{3}{4}")),
        ("3/4", "0.75", {}, (True, "3/4")),
        ("It costs $1,234.50", 1234.5, {}, (True, "1,234.50")),
        ("1,2,3", 3, {}, (True, "3")),
        ("10-3=7, hence -7", -7, {}, (True, "-7")),
        ("from 5-3", 3, {}, (True, "3")),
        ("\u22127", -7, {}, (True, "\u22127")),
        ("2.5e3", 2500, {}, (True, "2.5e3")),
        (".5", 0.5, {}, (True, ".5")),
        ("0.30", 0.3, {}, (True, "0.30")),
        ("3.14", 3.14159, {}, (False, "3.14")),
        ("3.14", 3.14159, {"rel_tol": 0.01}, (True, "3.14")),
        ("99", 100, {"abs_tol": 1}, (True, "99")),
        ("none", 1, {}, (False, None)),
        ("1/0", 1, {}, (False, None)),
        ("9" * 5000, 1, {}, (False, None)),
        ("1e999999999", 1, {}, (False, "1e999")),
        ("score: 3 of 5", 3, {"extract": r"score: (\d+)"}, (True, "3")),
        (r"\boxed{4", 4, {}, (True, "4")),
    ],
)
def test_numeric(text: str, expected: Any, params: dict[str, Any], wanted: tuple[bool, str | None]) -> None:
    found = judged("numeric", text, expected, **params)
    assert found[0] == wanted[0]
    if not text.startswith("1e9"):
        assert found == wanted


@pytest.mark.parametrize(
    ("text", "expected", "params", "wanted"),
    [
        ("The answer is (C).", "C", {}, (True, "C")),
        ("A is wrong and B is wrong. Answer: **D**", "D", {}, (True, "D")),
        (r"So \boxed{\text{B}}.", "b", {}, (True, "B")),
        ("the answer is option A", "A", {}, (True, "A")),
        ("The answer is a number.", "A", {}, (False, None)),
        ("the answer is (a)", "A", {}, (True, "A")),
        ("I think so.\n\n**B.**", "B", {}, (True, "B")),
        ("B", "B", {}, (True, "B")),
        ("A good question about B and C", "A", {}, (False, None)),
        ("The answer is Berlin", "B", {}, (False, None)),
        ("Answer: E", "A", {"choices": 4}, (False, None)),
        ("<<C>>", "C", {"extract": "<<(.)>>"}, (True, "C")),
        ("", "A", {}, (False, None)),
    ],
)
def test_multiple_choice(text: str, expected: Any, params: dict[str, Any], wanted: object) -> None:
    assert judged("multiple_choice", text, expected, **params) == wanted


@pytest.mark.parametrize(
    ("text", "expected", "params", "wanted"),
    [
        ("on 1969-07-20", r"\d{4}-\d\d", {}, (True, "1969-07")),
        ("YES", "^yes$", {"ignore_case": True}, (True, "YES")),
        (" yes \n", "yes", {"whole": True}, (True, "yes")),
        ("yes, sir", "yes", {"whole": True}, (False, None)),
    ],
)
def test_regex(text: str, expected: Any, params: dict[str, Any], wanted: object) -> None:
    assert judged("regex", text, expected, **params) == wanted


REFUSED = {
    "exact_match": [None, 3, "", [], ["a", 1], {"a": 1}],
    "numeric": [None, True, "", "x", "1 2", [1], float("inf"), 10**500, "1/0"],
    "multiple_choice": [None, "", "AB", "1", 0, "Z", "\u0130"],
    "regex": [None, "", "(", 3, "a{99999999999}", "x" * 20_000],
}


@pytest.mark.parametrize(("name", "expected"), [(name, item) for name, listed in REFUSED.items() for item in listed])
def test_expected_answer_that_cannot_be_compared_is_refused(name: str, expected: Any) -> None:
    with pytest.raises(InvalidParameter) as caught:
        deepinfer_scorer_create(name, {}).check(expected)
    assert "the scorer compares with" in caught.value.reason


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("exact_match", {"ignore_case": 1}),
        ("exact_match", {"extract": "("}),
        ("exact_match", {"extract": "(a)(b)"}),
        ("numeric", {"rel_tol": -1}),
        ("numeric", {"abs_tol": float("nan")}),
        ("numeric", {"abs_tol": True}),
        ("multiple_choice", {"choices": 27}),
        ("multiple_choice", {"choices": "4"}),
        ("regex", {"whole": None}),
        *((name, {"colour": 1}) for name in SCORERS),
    ],
)
def test_parameter_that_a_scorer_cannot_use_is_refused_by_name(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(params))):
        deepinfer_scorer_create(name, params)


def test_unknown_scorer_is_refused_with_the_known_names() -> None:
    with pytest.raises(PluginMissing) as caught:
        deepinfer_scorer_create("judge", {})
    assert caught.value.reason == "it provides: exact_match, multiple_choice, numeric, regex"


@pytest.mark.timeout(0)  # it has the process's timer, which the limit leaves alone
@pytest.mark.parametrize(
    ("name", "expected", "params"),
    [("regex", r"(a+)+$", {}), ("regex", r"(a+)+", {"whole": True}), ("exact_match", "a", {"extract": r"(a+)+$"})],
)
def test_expression_without_an_end_is_ended_and_named(
    name: str, expected: str, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepinfer_eval.scorers.matching.LIMIT_S", 0.1)
    handler = signal.getsignal(signal.SIGALRM)
    with pytest.raises(
        InvalidParameter, match=r"the expression '\(a\+\)\+\$?' was not done with an answer after 0.1 s"
    ):
        judged(name, "a" * 60 + "b", expected, **params)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert judged("regex", "aaa", r"(a+)+$") == (True, "aaa")
