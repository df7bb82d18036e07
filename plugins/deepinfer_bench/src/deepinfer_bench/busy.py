"""How long a device is busy: the union of what the profiler saw run, on all of its streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from attrs import frozen


@frozen
class Busy:
    """Of a profiled window. ``kernels`` counts launches; ``top`` has (name, microseconds, launches) of the longest."""

    span_us: float
    busy_us: float
    kernels: int
    top: tuple[tuple[str, float, int], ...]

    @property
    def idle(self) -> float:
        """Share of the window in which nothing ran."""
        return 1 - self.busy_us / self.span_us if self.span_us else 0.0


def profiled(work: Callable[[], object]) -> Busy:
    """Run ``work`` under the profiler, device activities only, and wait for the device at its end."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    return of_events(profile.profiler.kineto_results.events())


def of_events(events: Iterable[Any]) -> Busy:
    spans, times, counts = [], Counter[str](), Counter[str]()
    for event in events:
        if not str(event.device_type()).endswith("CUDA"):
            continue
        begin, duration = event.start_ns(), event.duration_ns()
        spans.append((begin, begin + duration))
        times[event.name()] += duration
        counts[event.name()] += 1
    busy, span = union(spans)
    top = tuple((name[:70], round(ns / 1e3, 1), counts[name]) for name, ns in times.most_common(25))
    return Busy(span / 1e3, busy / 1e3, len(spans), top)


def union(spans: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """(time covered by ``spans``, time from the first begin to the last end)."""
    covered, first, last = 0, None, 0
    for begin, end in sorted(spans):
        if first is None:
            first = last = begin
        covered += max(0, end - max(begin, last))
        last = max(last, end)
    return covered, 0 if first is None else last - first
