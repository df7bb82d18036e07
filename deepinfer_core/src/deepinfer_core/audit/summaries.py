"""Log-probabilities of recorded answers by position, and what became of their drafts by place."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from attrs import frozen

from deepinfer_core.replay import RecordedAnswer
from deepinfer_core.requests.token_logprobs import FLOOR


@frozen
class LogprobSummary:
    """Of all tokens that have a log-probability; those that could not be drawn at all (forced ones) are not counted."""

    count: tuple[int, ...]
    """Of each position of an answer, from the first token."""
    mean: tuple[float | None, ...]
    """Of each position; None where nothing was counted."""

    @property
    def tokens(self) -> int:
        return sum(self.count)

    def between(self, first: int, last: int) -> float | None:
        """Mean over the positions ``[first, last)``; None where nothing was counted."""
        pairs = [(n, m) for n, m in zip(self.count[first:last], self.mean[first:last], strict=True) if m is not None]
        count = sum(n for n, _ in pairs)
        return sum(n * m for n, m in pairs) / count if count else None


def summarise(answers: Iterable[RecordedAnswer]) -> LogprobSummary:
    """Counts and means of each position."""
    rows = [answer.logprobs for answer in answers if answer.logprobs]
    length = max(map(len, rows), default=0)
    count, total = np.zeros(length, dtype=np.int64), np.zeros(length)
    for row in rows:
        values = np.array(row)
        counted = values > FLOOR
        count[: len(row)] += counted
        total[: len(row)] += np.where(counted, values, 0.0)
    means = tuple(float(t / n) if n else None for t, n in zip(total, count, strict=True))
    return LogprobSummary(tuple(count.tolist()), means)


@frozen
class Acceptance:
    """Drafts of recorded answers. Proposals that no step of an answer verified are not part of a file."""

    verified: tuple[int, ...]
    """Of each place in a block."""
    accepted: tuple[int, ...]
    steps: int
    """Decode steps that gave tokens, counted for each answer."""
    tokens: int
    """What they gave."""

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else 1.0


def acceptance(answers: Iterable[RecordedAnswer]) -> Acceptance | None:
    """None if no draft was verified. The first token of an answer is that of its prompt, and no step's."""
    verified: list[int] = []
    accepted: list[int] = []
    steps = tokens = 0
    for answer in answers:
        more = [0] * (len(answer.verified_drafts) - len(verified))
        verified += more
        accepted += more
        for place, (looked_at, taken) in enumerate(zip(answer.verified_drafts, answer.accepted_drafts, strict=True)):
            verified[place] += looked_at
            accepted[place] += taken
        later = max(0, len(answer.token_ids) - 1)
        tokens += later
        steps += later - sum(answer.accepted_drafts)
    return Acceptance(tuple(verified), tuple(accepted), steps, tokens) if any(verified) else None
