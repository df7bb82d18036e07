"""Time of one call on the device: rotating inputs, a CUDA graph, the median of many replays.

Several input sets are visited in turn, as many as together pass the second-level cache, so that a call finds its inputs
in memory as it would between the other kernels of a step. The calls are captured into one graph: what is timed is the
kernels and the gaps between them, not Python and not the launches.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen

Call = Callable[[], Any]

ROTATED_BYTES = 200 << 20
"""Bytes that the input sets of a case have together, about three times the second-level cache."""
MAX_SETS = 32
LAUNCHES = (4, 64)
"""Fewest and most calls in a graph."""
GRAPH_SECONDS = 2e-3
"""Device time that a graph should have, so that the clock of the events does not matter."""
REPLAYS = (7, 40)
CASE_SECONDS = 0.15


@frozen
class Timing:
    """Microseconds of one call: median, least and 90th percentile over the replays, and of how many."""

    us: float
    least: float
    p90: float
    replays: int


def input_sets(num_bytes: int) -> int:
    """How many input sets of ``num_bytes`` each a case rotates through."""
    return max(1, min(MAX_SETS, -(-ROTATED_BYTES // max(1, num_bytes))))


def measure(calls: Sequence[Call], seconds: float = CASE_SECONDS) -> Timing:
    """Time ``calls``, one for each input set, visited in turn, for about ``seconds`` of the device.

    What a call returns is kept until the graph is gone, so that each writes memory of its own.

    :raises RuntimeError: a call cannot be captured: it waits for the device.
    """
    for call in calls:  # compiles, and creates what is created once: for each weight as well
        call()
    torch.cuda.synchronize()
    estimate = _estimate(calls)
    count = max(LAUNCHES[0], min(LAUNCHES[1], int(GRAPH_SECONDS / max(estimate, 1e-7))))
    graph, kept = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for i in range(count):
            kept.append(calls[i % len(calls)]())
    replays = max(REPLAYS[0], min(REPLAYS[1], int(seconds / max(estimate * count, 1e-7))))
    for _ in range(2):
        graph.replay()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(replays)]
    for begin, end in marks:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    times = sorted(begin.elapsed_time(end) * 1e3 / count for begin, end in marks)
    del graph, kept
    gc.collect()  # a graph keeps the memory of what was captured
    return Timing(statistics.median(times), times[0], times[int(0.9 * (len(times) - 1))], replays)


def _estimate(calls: Sequence[Call]) -> float:
    """Seconds of a call, roughly: launches included."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for i in range(4):
        calls[i % len(calls)]()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 4e3


def host_us(call: Call, repeat: int = 50) -> float:
    """Microseconds of wall time of one eager call without waiting: what its wrapper costs where no graph is used."""
    import time

    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6
