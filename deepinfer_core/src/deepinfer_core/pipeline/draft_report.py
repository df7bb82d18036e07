"""What speculation did in an engine: how many drafts were proposed, verified and accepted, and where in the block."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

from deepinfer_core.records import SamplerOutput


@frozen
class DraftReport:
    """Counts over all committed decode steps, also those of requests that had ended (two steps in flight)."""

    draft_tokens: int
    """Drafts of a request in a step at most (K)."""
    proposed: int
    """Drafts that were drawn."""
    verified: tuple[int, ...]
    """Of each place in a block, how many drafts the model looked at; empty where the sampler does not count."""
    accepted: tuple[int, ...]
    """Of each place, how many became part of the output."""
    request_steps: int
    """Decode steps of all requests, counted for each request."""
    output_tokens: int
    """Tokens that these steps gave to requests."""
    confidence_error: float | None
    """Mean distance between a draft's confidence and the chance that it is accepted; None without confidences."""

    @property
    def tokens_per_step(self) -> float:
        """Tokens of a request in a decode step, 1 without speculation."""
        return self.output_tokens / self.request_steps if self.request_steps else 1.0

    @property
    def acceptance(self) -> tuple[float | None, ...]:
        """Of each place, the share of verified drafts that became part of the output; None where none was verified."""
        return tuple(a / v if v else None for a, v in zip(self.accepted, self.verified, strict=True))

    def as_record(self) -> dict[str, object]:
        """The same as JSON-serialisable data."""
        return {
            "draft_tokens": self.draft_tokens,
            "proposed": self.proposed,
            "verified": list(self.verified),
            "accepted": list(self.accepted),
            "request_steps": self.request_steps,
            "output_tokens": self.output_tokens,
            "tokens_per_step": self.tokens_per_step,
            "confidence_error": self.confidence_error,
        }

    def __str__(self) -> str:
        places = ", ".join("-" if share is None else f"{share:.0%}" for share in self.acceptance)
        error = "" if self.confidence_error is None else f", confidence off by {self.confidence_error:.2f}"
        return (
            f"drafts: {self.proposed} proposed, {sum(self.verified)} verified, {sum(self.accepted)} accepted"
            f" (by place {places or 'not counted'}), {self.tokens_per_step:.2f} tokens a step{error}"
        )


@define
class DraftCounts:
    """Of one request: drafts by their place in a block, as its tokens come."""

    verified: list[int] = field(factory=list)
    accepted: list[int] = field(factory=list)
    _place: int = 0
    """Of the next draft in its step: drafts are the first tokens of a step."""

    def add(self, verified: int, *, is_draft: bool) -> None:
        """A token; ``verified``: drafts that its step looked at, with the first token of the step, else 0."""
        if verified:
            self._place = 0
            self._widen(verified)
            for place in range(verified):
                self.verified[place] += 1
        if is_draft:
            self._widen(self._place + 1)
            self.accepted[self._place] += 1
            self._place += 1

    def _widen(self, places: int) -> None:
        more = [0] * (places - len(self.verified))
        self.verified += more
        self.accepted += more


class DraftCounter:
    """Adds up the statistics of steps. ``num_draft`` 0: nothing is counted."""

    def __init__(self, num_draft: int) -> None:
        self.num_draft = num_draft
        self._first_tokens = 0
        self._proposed = 0
        self._verified = np.zeros(num_draft, dtype=np.int64)
        self._accepted = np.zeros(num_draft, dtype=np.int64)
        self._counts = False
        self._error = 0.0
        self._has_confidence = False

    def add(self, sampled: SamplerOutput, first_tokens: int) -> None:
        """``sampled``: the result of a step, on the host. ``first_tokens``: prompts that ended in it."""
        if not self.num_draft:
            return
        self._first_tokens += first_tokens
        if sampled.draft_ids is not None:
            self._proposed += int((_host(sampled.draft_ids) >= 0).sum())
        if sampled.verified_per_step is not None and sampled.accepted_per_step is not None:
            self._counts = True
            self._verified += _host(sampled.verified_per_step)
            self._accepted += _host(sampled.accepted_per_step)
            self._error += float(sampled.confidence_error or 0.0)
            self._has_confidence = self._has_confidence or sampled.confidence is not None

    def report(self, stats: Any) -> DraftReport:
        """``stats``: of the core."""
        steps = stats.tokens_decode - stats.tokens_drafted if self.num_draft else 0
        verified = int(self._verified.sum())
        return DraftReport(
            draft_tokens=self.num_draft,
            proposed=self._proposed,
            verified=tuple(self._verified.tolist()) if self._counts else (),
            accepted=tuple(self._accepted.tolist()) if self._counts else (),
            request_steps=steps,
            output_tokens=max(0, stats.tokens_output - self._first_tokens) if self.num_draft else 0,
            confidence_error=self._error / verified if verified and self._has_confidence else None,
        )


def _host(values: Any) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.asarray(values)
    return array
