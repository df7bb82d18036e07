"""A time stamp for each committed step, and what had been done by then."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define, field, frozen

from deepinfer_bench.disturbances import Clock
from deepinfer_core.pipeline import PhaseTimes

PHASES = (
    "schedule",
    "pack",
    "bind",
    "feed",
    "forward",
    "logits",
    "grammar",
    "sample",
    "draft",
    "wait",
    "commit",
    "emit",
)
"""Phases of a step that the engine times, in order."""


@frozen
class Stamp:
    """The end of a step. ``tokens`` and ``phases`` are totals so far: output tokens, and nanoseconds of each phase."""

    ns: int
    kind: str
    """``prefill`` or ``decode``; empty for the beginning of a segment, which is no step."""
    requests: int
    rows: int
    tokens: int
    phases: tuple[int, ...]
    graphs: int
    """Graphs recorded so far."""


@define(eq=False)
class StepLog:
    """An observer of the engine's steps (``deepinfer_core.pipeline.meter.StepObserver``).

    :param clock: Nanoseconds, monotonic.
    :param times: The engine's own, read at each stamp.
    :param num_graphs: Graphs recorded so far.
    """

    clock: Clock
    times: PhaseTimes
    num_graphs: Callable[[], int]
    stamps: list[Stamp] = field(factory=list)
    outputs: Sequence[Sequence[int]] = ()
    """Token ids of the requests that run, each growing: what came with a step is the difference between two stamps."""

    def begin(self, outputs: Sequence[Sequence[int]]) -> None:
        """A new segment starts here, with these requests."""
        self.outputs = outputs
        self.stamps = []
        self._stamp("", 0, 0)

    def step(self, kind: str, num_reqs: int, num_tokens: int, seconds: float) -> None:
        self._stamp(kind, num_reqs, num_tokens)

    def take(self) -> list[Stamp]:
        """The stamps so far; the last one begins what comes next."""
        stamps, self.stamps = self.stamps, self.stamps[-1:]
        return stamps

    def _stamp(self, kind: str, requests: int, rows: int) -> None:
        now = self.clock()  # first: what follows belongs to the next step
        times = self.times
        self.stamps.append(
            Stamp(
                now,
                kind,
                requests,
                rows,
                sum(map(len, self.outputs)),
                tuple(getattr(times, name) for name in PHASES),
                self.num_graphs(),
            )
        )
