"""Tells the observers of plugins what an engine does, and answers what they ask.

Nothing of this exists where nobody observes: the step loop then asks an empty list. An observer that fails is dropped,
which is said once; it must not change the run. Counters are copied when somebody asks for them, and not in every step:
a question from another thread waits for the end of the step that runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from attrs import evolve

from deepinfer_core.pipeline.step_warnings import warn
from deepinfer_core.types import EngineSnapshot, RequestReport, StepReport

if TYPE_CHECKING:
    from deepinfer_core.engine import Engine
    from deepinfer_core.interfaces import StepObserver
    from deepinfer_core.requests.request import Request

PHASES = (
    *("schedule", "pack", "bind", "feed", "forward", "logits", "grammar"),
    *("sample", "draft", "wait", "commit", "emit"),
)
"""Phases of a step that the engine times, in order."""
NS = 1e-9
WAIT_S = 1.0
"""How long a question waits for the end of a step, before the answer is what was known."""
RETRY_S = 0.05
"""How long it waits before it looks whether there is a step at all: the last one may have ended just now."""


class Watch:
    """An ``EngineView`` over ``engine``, and what feeds its observers: `step` and `ended`, in the engine's thread."""

    def __init__(self, engine: Engine, observers: Sequence[StepObserver]) -> None:
        self._engine = engine
        self._observers = list(observers)
        self._totals = self._phase_totals()
        self._progress_ns = perf_counter_ns()
        self._last = EngineSnapshot(engine.core.stats(), engine.draft_report)
        self._asked = False
        self._answered = threading.Condition()
        engine.meter.observers.append(self)
        engine.emitter.listeners.append(self.ended)
        self._tell(lambda observer: observer.ready(self))

    def step(self, kind: str, num_reqs: int, num_tokens: int, seconds: float) -> None:
        """``deepinfer_core.pipeline.meter.StepObserver``."""
        self._progress_ns = perf_counter_ns()
        before, self._totals = self._totals, self._phase_totals()
        if self._asked:
            with self._answered:
                self._asked, self._last = False, self._look(self._engine.core)
                self._answered.notify_all()
        report = StepReport(
            kind=kind,
            num_reqs=num_reqs,
            num_tokens=num_tokens,
            seconds=seconds,
            phases={name: (now - then) * NS for name, now, then in zip(PHASES, self._totals, before, strict=True)},
        )
        self._tell(lambda observer: observer.step(report))

    def ended(self, request: Request) -> None:
        """A request has ended, for whatever reason."""
        times = request.times()
        report = RequestReport(
            request_id=request.request_id,
            sample=request.sample,
            finish_reason=request.finish_reason,
            prompt_tokens=len(request.prompt_token_ids),
            cached_tokens=request.cached_tokens,
            output_tokens=len(request.token_ids),
            queue_s=times.queue_s,
            ttft_s=times.ttft_s,
            itl_s=times.itl_s,
            total_s=times.total_s,
        )
        self._tell(lambda observer: observer.ended(report))

    @property
    def depth(self) -> int:
        """Steps in flight at most."""
        return int(self._engine.core.config.depth)

    @property
    def num_live(self) -> int:
        """Requests that have not ended."""
        return self._engine.num_live

    @property
    def num_in_flight(self) -> int:
        """Steps that were launched and not committed."""
        return len(self._engine.in_flight())

    @property
    def in_flight_s(self) -> float:
        """Age of the oldest of them; 0 where there is none."""
        open_steps = self._engine.in_flight()
        return (perf_counter_ns() - open_steps[0].started_ns) * NS if open_steps else 0.0

    @property
    def progress_age_s(self) -> float:
        """Seconds since a step was launched or committed."""
        newest = max((record.started_ns for record in self._engine.in_flight()), default=0)
        return (perf_counter_ns() - max(newest, self._progress_ns)) * NS

    @property
    def fault(self) -> str:
        """Why the engine stopped for good; empty where it has not."""
        broken = self._engine.broken
        return "" if broken is None else broken.what

    def snapshot(self) -> EngineSnapshot:
        """Counters and levels as of now, and, where nothing runs, whether the core has all of its memory back."""
        give_up = perf_counter_ns() + WAIT_S / NS
        while not self._refresh():
            with self._answered:
                self._asked = True
                if self._answered.wait_for(lambda: not self._asked, RETRY_S):
                    break
            if perf_counter_ns() > give_up:
                break
        return self._last

    def _refresh(self) -> bool:
        """Look now, if no other thread runs a step."""
        fresh: EngineSnapshot | None = self._engine.between_steps(self._look)
        if fresh is not None:
            self._last = fresh
        elif not self.num_live:  # the engine has ended
            self._last = evolve(self._last, stats=self._engine.stats(), drafts=self._engine.draft_report)
        return fresh is not None or not self.num_live

    def _look(self, core: Any) -> EngineSnapshot:
        stats, drafts, audits = core.stats(), self._engine.draft_report, self._last.audits
        if self._engine.num_live or self._engine.in_flight():
            return EngineSnapshot(stats, drafts, self._last.fault, audits)
        fault = ""
        try:
            core.audit()
        except Exception as err:  # whatever the native core says of its own state
            fault = str(err)
        if not fault and any(pool.limbo for pool in (stats.main, stats.swa, stats.state, stats.draft)):
            fault = "blocks wait for a step while none is in flight"
        return EngineSnapshot(stats, drafts, fault, audits + 1)

    def _phase_totals(self) -> tuple[int, ...]:
        times = self._engine.times
        return tuple(getattr(times, name) for name in PHASES)

    def _tell(self, call: Callable[[StepObserver], object]) -> None:
        for observer in list(self._observers):
            try:
                call(observer)
            except Exception as err:  # an observer must not change the run
                self._observers.remove(observer)
                warn(f"W_OBSERVER: {type(observer).__name__} failed and is off: {type(err).__name__}: {err}")
