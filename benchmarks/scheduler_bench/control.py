"""What the machine does to any code: a plain loop, about as long as a step, timed just before and after a run's steps.

Not between them: a step would find caches that others on the machine had time to fill.
"""

from __future__ import annotations

from time import perf_counter_ns as now

import numpy as np

from .machine import switches

ROUNDS = 20_000  # of the loop, to see how long one takes


class Control:
    """Counts to the same number again and again: the spread of its times is that of the machine alone."""

    def __init__(self, step_us: float, steps: int) -> None:
        least = min(timed(range(ROUNDS)) for _ in range(5))
        self._rounds = range(max(1, round(step_us * 1e3 * ROUNDS / least)))
        self._times = np.zeros((steps, 2), np.int64)  # nanoseconds; whether the system ran something else meanwhile
        self._at = 0

    def run(self, turns: int) -> None:
        for _ in range(turns):
            before = switches()
            self._times[self._at] = timed(self._rounds), switches() - before
            self._at += 1

    def p99_over_p50(self) -> float | None:
        """Of the turns that the system did not interrupt, as of the steps."""
        times = self._times[: self._at]
        kept = times[times[:, 1] == 0, 0]
        return float(np.percentile(kept, 99) / np.median(kept)) if kept.size else None


def timed(rounds: range) -> int:
    began = now()
    for _ in rounds:
        pass
    return now() - began
