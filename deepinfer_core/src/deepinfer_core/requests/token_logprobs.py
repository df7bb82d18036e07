"""Log-probabilities of tokens: from the events of a step to what a caller gets (``spec/sampling.md`` 1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

FLOOR = -9999.0
"""Reported for a token of probability 0, and below: results are finite numbers, in JSON too."""


@frozen
class TokenLogprob:
    """How likely one token of an answer was."""

    token_id: int
    logprob: float
    """At most 0; ``FLOOR`` for a token that could not be drawn (a forced one)."""
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens in order, as (token id, log-probability); fewer than asked for where fewer are possible.
    """
    draft_logprob: float | None = None
    """The drafter's log-probability, if the token was an accepted draft."""
    sum_smaller: float | None = None
    """Probability mass of less likely tokens, equal ones up to this id included; with setting ``sum_smaller``."""

    def as_record(self) -> dict[str, object]:
        """The same as JSON-serialisable data; what there is none of is left out."""
        record: dict[str, object] = {"token_id": self.token_id, "logprob": self.logprob}
        if self.top:
            record["top"] = [list(pair) for pair in self.top]
        if self.draft_logprob is not None:
            record["draft_logprob"] = self.draft_logprob
        if self.sum_smaller is not None:
            record["sum_smaller"] = self.sum_smaller
        return record


class EventLogprobs:
    """What the events of one batch say beside their tokens. Columns become lists when the first request asks."""

    def __init__(self, events: Any, *, with_sum_smaller: bool) -> None:
        self._events = events
        self._with_sum_smaller = with_sum_smaller
        self._columns: dict[str, list[Any]] = {}

    def token(self, at: int, token_id: int, *, is_draft: bool, most: int) -> TokenLogprob:
        """Of event ``at``, with at most ``most`` alternatives."""
        first, count = self._column("top_offset")[at], min(self._column("top_count")[at], most)
        top: tuple[tuple[int, float], ...] = ()
        if first >= 0 and count:
            ids, values = self._column("top_ids"), self._column("top_logprobs")
            top = tuple(zip(ids[first : first + count], map(finite, values[first : first + count]), strict=True))
        return TokenLogprob(
            token_id,
            finite(self._column("logprob")[at]),
            top,
            finite(self._column("draft_logprob")[at]) if is_draft else None,
            self._column("sum_smaller")[at] if self._with_sum_smaller else None,
        )

    def prompt(self, at: int) -> tuple[float | None, ...] | None:
        """Of the prompt whose first new token is event ``at``; the first prompt token has none."""
        first = self._column("prompt_lp_offset")[at]
        if first < 0:
            return None
        end = first + self._column("prompt_len")[at]
        return (None, *map(finite, self._column("prompt_logprobs")[first + 1 : end]))

    def _column(self, name: str) -> list[Any]:
        values = self._columns.get(name)
        if values is None:
            values = self._columns[name] = getattr(self._events, name).tolist()
        return values


def finite(value: float) -> float:
    """``value``, not below the floor; the floor for NaN."""
    return value if value > FLOOR else FLOOR


def total(logprobs: Sequence[TokenLogprob]) -> float:
    """Log-probability of all of them."""
    return sum((item.logprob for item in logprobs), 0.0)
