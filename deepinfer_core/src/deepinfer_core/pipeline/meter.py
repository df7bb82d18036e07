"""What was done and how long it took, told to the observers after each commit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from deepinfer_core.pipeline.record import StepRecord
from deepinfer_core.pipeline.step_warnings import warn
from deepinfer_core.pipeline.times import PhaseTimes
from deepinfer_core.records import StepKind


class StepObserver(Protocol):
    """Sees each step after commit; must not change anything. Calibration times steps with one."""

    def step(self, kind: str, num_reqs: int, num_tokens: int, seconds: float) -> None:
        """Called after each commit: ``prefill`` or ``decode``, requests and rows of the step, and its time."""


class StepMeter:
    """Counts committed steps into ``times`` and tells ``observers``; one that fails is dropped."""

    def __init__(self, times: PhaseTimes, observers: Iterable[StepObserver]) -> None:
        self.observers = list(observers)
        self._times = times
        self._committed_ns = 0

    def committed(self, record: StepRecord, now_ns: int) -> None:
        """The seconds of a step: since it was scheduled, or since the commit before where that came later.

        So they add up to the time of the run, also while steps overlap.
        """
        ns = now_ns - max(record.started_ns, self._committed_ns)
        self._committed_ns = now_ns
        times = self._times
        times.steps += 1
        if record.is_prefill:
            times.prefill_tokens += record.num_tokens
        else:
            times.decode_tokens += record.num_tokens
        for observer in list(self.observers):
            try:
                kind = StepKind(record.kind).name.lower()
                observer.step(kind, record.num_reqs, record.num_tokens, ns * 1e-9)
            except Exception as err:  # an observer must not change the run; it is dropped, and that is said once
                self.observers.remove(observer)
                warn(f"W_OBSERVER: {type(observer).__name__} failed and is off: {err}")
