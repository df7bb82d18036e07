"""A measured segment: which intervals count, what they took, and where the time went.

An interval lies between the ends of two successive steps. The first stamp of a segment only opens it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from attrs import field, frozen

from deepinfer_bench.disturbances import KINDS, Disturbances
from deepinfer_bench.step_log import PHASES, Stamp

GRAPH, OTHER_KIND, BATCH = "graph", "other_kind", "batch"
REASONS = (*KINDS, GRAPH, OTHER_KIND, BATCH)
"""Why an interval is dropped: the three of the method; a graph was recorded in it; the step was of the other kind; it
had not all requests."""
MODEL_PHASES = ("forward", "logits", "sample", "draft")
"""Calls of the model and the sampler; on a backend that computes within the calls, the device's work is in them."""


@frozen
class Interval:
    """One step: nanoseconds, requests, rows, output tokens, nanoseconds of each phase, and why it is dropped."""

    ns: int
    requests: int
    rows: int
    tokens: int
    phases: tuple[int, ...]
    dropped: str = ""


@frozen
class Segment:
    """All intervals of one kind of work. Times in nanoseconds."""

    kind: str
    intervals: tuple[Interval, ...]
    kept: tuple[Interval, ...] = field(init=False)

    @kept.default
    def _kept(self) -> tuple[Interval, ...]:
        return tuple(interval for interval in self.intervals if not interval.dropped)

    @classmethod
    def of(cls, kind: str, stamps: Sequence[Stamp], events: Disturbances, requests: int | None = None) -> Segment:
        """The intervals between ``stamps``.

        :param requests: How many a step must have to count; None: any number.
        """
        return cls(
            kind,
            tuple(
                Interval(
                    ns=after.ns - before.ns,
                    requests=after.requests,
                    rows=after.rows,
                    tokens=after.tokens - before.tokens,
                    phases=tuple(b - a for a, b in zip(before.phases, after.phases, strict=True)),
                    dropped=_reason(kind, before, after, events, requests),
                )
                for before, after in pairwise(stamps)
            ),
        )

    def joined(self, other: Segment) -> Segment:
        """This and another segment of the same kind."""
        return Segment(self.kind, (*self.intervals, *other.intervals))

    @property
    def seconds(self) -> float:
        """Of the kept intervals."""
        return sum(interval.ns for interval in self.kept) * 1e-9

    @property
    def tokens(self) -> int:
        """Output tokens of the kept intervals."""
        return sum(interval.tokens for interval in self.kept)

    @property
    def rows(self) -> int:
        return sum(interval.rows for interval in self.kept)

    @property
    def dropped(self) -> dict[str, int]:
        """Reason -> intervals, every reason named."""
        counts = Counter(interval.dropped for interval in self.intervals)
        return {reason: counts[reason] for reason in REASONS}

    def step_ms(self) -> dict[str, float | None]:
        """p50, p90, p99 (linear between neighbours), mean, least and most; None where nothing was kept."""
        values = np.array([interval.ns for interval in self.kept], dtype=np.float64) * 1e-6
        if not len(values):
            return dict.fromkeys(("p50", "p90", "p99", "mean", "min", "max"))
        p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
        return {
            "p50": p50,
            "p90": p90,
            "p99": p99,
            "mean": float(values.mean()),
            "min": float(values.min()),
            "max": float(values.max()),
        }

    def phase_us(self) -> dict[str, float]:
        """Mean microseconds of each phase in a kept step; ``other``: what no phase has (the loop, the caller).

        With two steps in flight an interval has the phases of both, so each phase counts once for each step.
        """
        count = len(self.kept)
        if not count:
            return dict.fromkeys((*PHASES, "other"), 0.0)
        sums = [sum(interval.phases[i] for interval in self.kept) for i in range(len(PHASES))]
        means = {name: total / count / 1e3 for name, total in zip(PHASES, sums, strict=True)}
        return {**means, "other": self.seconds * 1e6 / count - sum(means.values())}

    @property
    def outside_model_share(self) -> float | None:
        """Share of the step time outside the calls of model and sampler, and not waiting for the device."""
        if not self.kept:
            return None
        means = self.phase_us()
        step = self.seconds * 1e6 / len(self.kept)
        return max(0.0, 1 - sum(means[name] for name in (*MODEL_PHASES, "wait")) / step)

    def as_record(self) -> dict[str, Any]:
        """What the report has of every segment."""
        seconds = self.seconds
        whole_ns = sum(interval.ns for interval in self.intervals)
        return {
            "steps": len(self.intervals),
            "kept": len(self.kept),
            "dropped": self.dropped,
            "seconds": seconds,
            "seconds_dropped": whole_ns * 1e-9 - seconds,
            "rows": self.rows,
            "output_tokens": self.tokens,
            "step_ms": self.step_ms(),
            "phase_us": self.phase_us(),
            "outside_model_share": self.outside_model_share,
        }


def _reason(kind: str, before: Stamp, after: Stamp, events: Disturbances, requests: int | None) -> str:
    if after.kind != kind:
        return OTHER_KIND
    met = events.meeting(before.ns, after.ns)
    if met is not None:
        return met
    if after.graphs != before.graphs:
        return GRAPH
    return BATCH if requests is not None and after.requests != requests else ""
