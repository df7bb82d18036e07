"""An engine that tests make up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deepinfer_core.types import EngineSnapshot, RequestReport, StepReport

POOL = SimpleNamespace(total=8, free=6, cached=1, held=1, limbo=0)
EMPTY = SimpleNamespace(total=0, free=0, cached=0, held=0, limbo=0)


class View:
    """An ``EngineView`` whose answers are attributes."""

    def __init__(self) -> None:
        self.depth, self.num_live, self.num_in_flight = 2, 1, 1
        self.drafts = SimpleNamespace(verified=(), accepted=(), confidence_error=None)
        self.in_flight_s, self.progress_age_s, self.fault, self.leak = 0.0, 0.0, "", ""
        counters = dict.fromkeys(
            (
                *("steps_prefill", "steps_decode", "tokens_prefill", "tokens_decode", "tokens_drafted"),
                *("tokens_accepted", "tokens_output", "overrun_rows", "holds", "preemptions", "aborts"),
                *("prefix_queries", "prefix_hit_tokens", "prefix_replayed_tokens", "prefix_evictions"),
                *("budget_overruns", "event_ring_grown", "waiting", "prefill", "running", "zombie", "handoff"),
            ),
            0,
        )
        self.stats = SimpleNamespace(main=POOL, swa=POOL, state=POOL, draft=EMPTY, **counters)

    def snapshot(self) -> EngineSnapshot:
        return EngineSnapshot(self.stats, self.drafts, self.leak, 2)


@pytest.fixture
def view() -> View:
    return View()


@pytest.fixture
def make_step() -> Any:
    def make(kind: str = "decode", seconds: float = 0.01, **phases: float) -> StepReport:
        return StepReport(kind, 2, 3, seconds, phases)

    return make


@pytest.fixture
def make_end() -> Any:
    def make(reason: str = "stop", *times: float | None) -> RequestReport:
        queue, ttft, itl = times or (0.1, 0.2, 0.01)
        return RequestReport("r", 0, reason, 5, 1, 11, queue, ttft, itl, 0.3)

    return make
