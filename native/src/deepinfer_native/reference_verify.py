"""Verification lengths of ``spec/engine.md`` 7 written out plainly: brute force, ``sorted``, ``statistics.median``."""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

WINDOW = 5000
LEAST = 10
SAMPLER_WINDOW = 9
SAMPLER_LEAST = 5
UNITS = 2048


def total(
    values: npt.NDArray[np.float32],
    sizes: Sequence[int],
    ms: Sequence[float],
    slope: float = 0.0,
    sampler_ms: float = 0.0,
) -> int:
    """The first T of ``[N, N * (K + 1)]`` with the largest quotient of expected tokens, in `units`, and time."""
    n, k = (int(extent) for extent in values.shape)
    best, best_total = -1.0, n
    taken = n * UNITS
    ordered = sorted(units(values).reshape(-1).tolist(), reverse=True)
    for t in range(n, n * (k + 1) + 1):
        if t > n:
            taken += ordered[t - n - 1]
        graph = next(i for i, size in enumerate(sizes) if size >= t)
        time = ms[graph] + slope * sizes[graph]
        time += sampler_ms
        if taken / time > best:
            best, best_total = taken / time, t
    return best_total


def units(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """What values in 0 .. 1 count: whole units, rounded half up in float32."""
    scaled: npt.NDArray[np.float32] = values.astype(np.float32) * np.float32(UNITS) + np.float32(0.5)
    return np.floor(scaled).astype(np.int64)


def lengths(values: npt.NDArray[np.float32], tokens: int) -> list[int]:
    """1 and how many of the ``tokens - N`` largest values each row has; ties by row, then draft."""
    n, k = values.shape
    order = sorted(((i, j) for i in range(n) for j in range(k)), key=lambda at: (-float(values[at]), *at))
    out = [1] * n
    for i, _ in order[: tokens - n]:
        out[i] += 1
    return out


class Corrections:
    """What observed steps add to the curve (7.2)."""

    def __init__(self, sizes: Sequence[int], ms: Sequence[float]) -> None:
        self.curve = dict(zip(sizes, ms, strict=True))
        self.steps: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self.by_count: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=SAMPLER_WINDOW))
        self.sampler: deque[float] = deque(maxlen=SAMPLER_WINDOW)

    def observe(self, graph: int, num_reqs: int, forward_ms: float, sampler_ms: float) -> None:
        self.steps.append((graph, (forward_ms - self.curve[graph]) / graph))
        self.by_count[num_reqs].append(sampler_ms)
        self.sampler.append(sampler_ms)

    @property
    def slope(self) -> float:
        """Milliseconds for each token of a graph, not below 0."""
        groups: dict[int, list[float]] = defaultdict(list)
        for graph, value in self.steps:
            groups[graph].append(value)
        medians = [statistics.median(v) for v in groups.values() if len(v) >= LEAST]
        return max(0.0, statistics.median(medians)) if medians else 0.0

    def sampler_ms(self, num_reqs: int) -> float:
        """Milliseconds of the sampler in a step of ``num_reqs`` requests."""
        for samples in (self.by_count[num_reqs], self.sampler):
            if len(samples) >= SAMPLER_LEAST:
                return statistics.median(samples)
        return 0.0
