"""Verdicts on the answers of a file. No model is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from deepinfer_core.errors import CommandUsageError, DeepInferError, InvalidInputFile, InvalidParameter
from deepinfer_core.interfaces import Scorer
from deepinfer_core.parameters.named_parts import NamedPart
from deepinfer_core.plugins.failure import plugin_failure
from deepinfer_core.plugins.hooks import Hooks, expect
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.record import PluginRecord
from deepinfer_core.types import Score
from deepinfer_eval.answers import Answer, Answers, Header
from deepinfer_eval.dataset import Dataset
from deepinfer_eval.pass_at_1 import PassAt1, estimate
from deepinfer_eval.scorer_names import as_record, title


class Scorers:
    """The scorers of a run, each made once for its parameters.

    :param default: For items without one of their own; None: then every item needs one.
    """

    def __init__(self, manager: PluginManager, default: NamedPart | None) -> None:
        self._manager = manager
        self._default = default
        self._made: dict[str, tuple[PluginRecord, Scorer]] = {}
        self._checked: set[tuple[str, str]] = set()

    def named(self, own: NamedPart | None) -> NamedPart:
        """What judges an item. Raises CommandUsageError that lists what is installed where nothing was named."""
        part = own or self._default
        if part is None:
            names = [record.name for record in self._manager.registry.of_kind("scorer")]
            raise CommandUsageError(
                "no scorer was named",
                reason=f"installed: {', '.join(names) or 'none'}",
                remedy="give --scorer NAME, or give the items of the data set a scorer",
            )
        return part

    def check(self, dataset: Dataset) -> None:
        """Raises InvalidInputFile that names the first item whose expected answer its scorer cannot use."""
        for item in dataset.items:
            self._check(self.named(item.scorer), item.expected, f"line {item.line}, id {item.item_id}")

    def verdict(self, answer: Answer) -> Verdict:
        """Raises InvalidInputFile for an answer that expects what its scorer cannot use, and PluginError for whatever
        the scorer raises."""
        part = self.named(answer.scorer)
        once = (answer.item_id, part.key("scorer"))
        if once not in self._checked:
            self._check(part, answer.expected, f"id {answer.item_id}")
            self._checked.add(once)
        owner, scorer = self._scorer(part)
        try:
            score = expect(scorer.score(answer.text, answer.expected), Score, hook="Scorer.score", owner=owner)
        except DeepInferError:
            raise
        except Exception as exc:
            raise plugin_failure(owner, f"score of id {answer.item_id}, sample {answer.sample}", exc) from exc
        return Verdict(answer, part, score.correct, score.found)

    def _scorer(self, part: NamedPart) -> tuple[PluginRecord, Scorer]:
        key = part.key("scorer")
        if key not in self._made:
            owner = self._manager.require("scorer", part.name)
            self._made[key] = owner, Hooks(self._manager).scorer_create(owner, part.params)
        return self._made[key]

    def _check(self, part: NamedPart, expected: Any, where: str) -> None:
        owner, scorer = self._scorer(part)
        try:
            scorer.check(expected)
        except InvalidParameter as err:
            raise InvalidInputFile(
                f"{where}: {err.what}",
                reason=f"{err.reason} ({part.name})" if err.reason else f"scorer {part.name} cannot use it",
                remedy=err.remedy,
                details={"scorer": part.name},
            ) from err
        except Exception as exc:
            raise plugin_failure(owner, f"check of {where}", exc) from exc


@frozen
class Verdict:
    """What became of one answer."""

    answer: Answer
    scorer: NamedPart
    correct: bool
    found: str | None

    def as_record(self) -> dict[str, object]:
        record: dict[str, object] = {
            "id": self.answer.item_id,
            "sample": self.answer.sample,
            "correct": self.correct,
            "found": self.found,
            "expected": self.answer.expected,
            "scorer": as_record(self.scorer),
            "finish_reason": self.answer.finish_reason,
        }
        return record | ({"emulated": True} if self.answer.emulated else {})


def judge(answers: Answers, scorers: Scorers) -> list[Verdict]:
    """A verdict on each answer, in the order of items and samples. Raises as ``Scorers.verdict``."""
    return [scorers.verdict(answer) for answer in sorted(answers.answers, key=lambda item: item.key)]


@frozen
class Report:
    """What a file of answers amounts to."""

    dataset: Mapping[str, Any]
    answers: int
    missing: int
    """Answers that the file does not have."""
    right: int
    pass_at_1: PassAt1 | None
    scorers: tuple[str, ...]
    finish_reasons: Mapping[str, int]
    without_answer: int
    """Answers in which their scorer found nothing to compare; they count as wrong."""
    mean_tokens: float
    emulated: bool
    """Whether an emulated backend made answers."""


def report(header: Header, verdicts: Sequence[Verdict], confidence: float) -> Report:
    """The numbers of a file with this header; ``confidence`` is that of the interval."""
    return Report(
        dataset=header.dataset,
        answers=len(verdicts),
        missing=header.total - len(verdicts),
        right=sum(verdict.correct for verdict in verdicts),
        pass_at_1=estimate(_counts(verdicts), confidence),
        scorers=tuple(sorted({title(as_record(verdict.scorer) or {}) for verdict in verdicts})),
        finish_reasons=dict(sorted(Counter(verdict.answer.finish_reason for verdict in verdicts).items())),
        without_answer=sum(verdict.found is None for verdict in verdicts),
        mean_tokens=sum(v.answer.num_tokens for v in verdicts) / len(verdicts) if verdicts else 0.0,
        emulated=any(verdict.answer.emulated for verdict in verdicts),
    )


def _counts(verdicts: Sequence[Verdict]) -> list[tuple[int, int]]:
    """Right answers and answers of each item."""
    counts: dict[int, tuple[int, int]] = {}
    for verdict in verdicts:
        right, of = counts.get(verdict.answer.item, (0, 0))
        counts[verdict.answer.item] = (right + verdict.correct, of + 1)
    return list(counts.values())
