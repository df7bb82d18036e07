"""Faults of scorers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import toy_plugins
from attrs import evolve
from mutant import Mutant
from parts_models import patched

toy_plugins.install()


def _trips_over_an_empty_answer(before: Any) -> Any:
    def score(self: Any, text: str, expected: Any) -> Any:
        if text.split()[0] == "":
            return None
        return before(self, text, expected)

    return score


def _remembers_the_answer_before(before: Any) -> Any:
    said: list[str] = []

    def score(self: Any, text: str, expected: Any) -> Any:
        made = before(self, text, expected)
        said.append(str(made.found))
        return evolve(made, found=said[max(0, len(said) - 2)])

    return score


def _right_without_an_answer(before: Any) -> Any:
    return lambda self, text, expected: evolve(before(self, text, expected), found=None)


def _says_yes_to_all(before: Any) -> Any:
    return lambda self, text, expected: evolve(before(self, text, expected), correct=True)


def _checks_nothing(before: Any) -> Any:
    return lambda self, expected: None


def _takes_anything(before: Any) -> Any:
    def init(self: Any, slack: int = 0, **others: Any) -> None:
        before(self, slack)

    return init


def scorer(name: str, method: str, make: Callable[[Any], Any]) -> Mutant:
    return Mutant(
        name=name,
        kind="scorer",
        subject="toy_length",
        apply=patched("conformance_toys.judge", f"WordCount.{method}", make),
        caught_by="scorer/test_scorer.py",
    )


MUTANTS = [
    scorer("scorer_trips_over_an_empty_answer", "score", _trips_over_an_empty_answer),
    scorer("scorer_remembers_the_answer_before", "score", _remembers_the_answer_before),
    scorer("scorer_finds_nothing_and_says_yes", "score", _right_without_an_answer),
    scorer("scorer_says_yes_to_all", "score", _says_yes_to_all),
    scorer("scorer_checks_nothing", "check", _checks_nothing),
    scorer("scorer_takes_any_parameter", "__init__", _takes_anything),
]
