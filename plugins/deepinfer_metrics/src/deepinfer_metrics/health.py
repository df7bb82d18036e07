"""Whether an engine lives, is ready, has started (``spec/engine.md`` 9.2).

Each answer is a list of what is wrong, empty if nothing is. Not looked at is how long single blocks have been ``held``:
the core has no such clock. The audit of an engine without work finds them all the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepinfer_core.interfaces import EngineView

LIVE_S = 10.0
"""An engine with work that neither launches nor commits a step for so long does not live."""
STALL_S, STALL_FACTOR = 30.0, 20.0
"""A step is stalled after so many seconds, or so many times the 99th percentile of steps, whichever is more."""
STEPS_KEPT = 1000


class Health:
    """Fed in the engine's thread, asked in others."""

    def __init__(self) -> None:
        self._engine: EngineView | None = None
        self._closed = False
        self._seconds: deque[float] = deque(maxlen=STEPS_KEPT)

    def started(self, engine: EngineView) -> None:
        """The engine takes requests."""
        self._engine = engine

    def step(self, seconds: float) -> None:
        """A step took so long."""
        self._seconds.append(seconds)

    def close(self) -> None:
        self._closed = True

    def startup(self) -> list[str]:
        return [] if self._engine is not None else ["the model is not loaded yet"]

    def live(self) -> list[str]:
        engine = self._engine
        if engine is None or self._closed:
            return []  # a start may take long, and an end is no stall
        age = engine.progress_age_s
        if engine.num_live and age >= LIVE_S:
            return [f"{engine.num_live} requests wait, and no step was launched or committed for {age:.0f} s"]
        return []

    def ready(self) -> list[str]:
        engine = self._engine
        if engine is None:
            return self.startup()
        if self._closed:
            return ["the engine is closed"]
        wrong = [f"the engine stopped after a fault: {engine.fault}"] if engine.fault else []
        age, limit = engine.in_flight_s, self.stall_limit_s()
        if age > limit:
            wrong.append(f"a step has been in flight for {age:.1f} s, above {limit:.1f} s")
        if engine.num_in_flight > engine.depth:
            wrong.append(f"{engine.num_in_flight} steps are in flight, at most {engine.depth} may be")
        fault = engine.snapshot().fault
        return [*wrong, f"memory was not given back: {fault}"] if fault else wrong

    def stall_limit_s(self) -> float:
        """``max(30 s, 20 * p99)`` of the last steps."""
        return max(STALL_S, STALL_FACTOR * percentile(tuple(self._seconds.copy()), 0.99))


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that at least ``share`` of them do not exceed; 0 for none."""
    if not values:
        return 0.0
    return sorted(values)[math.ceil(share * len(values)) - 1]
