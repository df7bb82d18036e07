"""Phase A: which requests run, and how far."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from deepinfer_core.pipeline.record import StepRecord
from deepinfer_core.pipeline.times import PhaseTimes
from deepinfer_core.step_choice import StepChooser


def schedule(chooser: StepChooser, core: Any, times: PhaseTimes) -> StepRecord | None:
    """The next step, launched as far as the core is concerned; None when there is nothing to run now."""
    start = perf_counter_ns()
    outputs = chooser.schedule(core)
    record = StepRecord.of(outputs, start) if outputs.num_reqs else None
    times.schedule += perf_counter_ns() - start
    return record
