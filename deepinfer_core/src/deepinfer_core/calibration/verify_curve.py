"""Times of decode steps by their rows, which decide how many drafts are worth verifying (``spec/engine.md`` 7.1).

Measured on the engine's own parts, and kept in a file like a cost profile. The scheduler itself is the tool: given a
curve on which one size costs next to nothing, it makes steps of that size.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import define, field, frozen

from deepinfer_core.calibration.budget import Measured
from deepinfer_core.calibration.measure import Run, prompt_of
from deepinfer_core.calibration.profile import profile_key, profile_path, write_json
from deepinfer_core.errors import EngineError
from deepinfer_core.pipeline.meter import StepObserver

VERSION = 1
PROMPT = 8
MOST_SEQS = 8
"""Sequences that are measured at once; beyond them the curve goes on as it ended."""
STEPS = 2
"""Decode steps of a run if every draft is accepted, beside the first one, which counts as a warm-up."""
EVERY_SIZE_TO = 64
LEAST_OBSERVATIONS = 5
"""After so many the core believes a time (``spec/engine.md`` 7.2)."""
CHEAP_MS, DEAR_MS = 1e-3, 1e6


@frozen
class VerifyCurve:
    """``ms[i]``: a decode step with ``sizes[i]`` rows, without sampling; and where that comes from, in one line."""

    sizes: tuple[int, ...]
    ms: tuple[float, ...]
    sampling: tuple[tuple[int, int, float], ...] = ()
    """(requests, a size, ms): what sampling and drafting take beside a step."""
    origin: str = ""

    def give_to(self, core: Any) -> None:
        """The curve, and the times beside it as if they had been observed often enough to count."""
        core.set_verify_curve(self.sizes, self.ms)
        for n, size, ms in self.sampling:
            at = min(bisect_left(self.sizes, size), len(self.sizes) - 1)
            for _ in range(LEAST_OBSERVATIONS):
                core.observe_verify(self.sizes[at], n, self.ms[at], ms)


@define(eq=False)
class StepTimes:
    """A step observer: what decode steps took, by their requests and rows. Sampling and drafting are not part of it."""

    times: Any = None
    """``PhaseTimes`` of the engine that this observes; set once it is made."""
    seen: list[tuple[int, int, float, float]] = field(factory=list)
    """(requests, rows, ms without sampling, ms of sampling and drafting)."""
    _behind: int = 0

    def step(self, kind: str, num_reqs: int, num_tokens: int, seconds: float) -> None:
        behind = self.times.sample + self.times.draft
        spent, self._behind = behind - self._behind, behind
        if kind == "decode":
            sampling = spent * 1e-6
            self.seen.append((num_reqs, num_tokens, max(seconds * 1e3 - sampling, CHEAP_MS), sampling))


def points_to_measure(num_draft: int, max_num_seqs: int, max_tokens: int) -> list[tuple[int, int]]:
    """(sequences, rows): every number of drafts of one sequence, and whole blocks of several."""
    points = [(1, rows) for rows in range(1, num_draft + 2)]
    room = max_tokens // (PROMPT + 2 + STEPS * (num_draft + 1))
    return points + [(n, n * (num_draft + 1)) for n in (2, 4, MOST_SEQS) if n <= min(max_num_seqs, room)]


def curve_of(measured: Mapping[int, float], most: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Sizes up to ``most`` and their times: between the ``measured`` ones straight lines, beyond them the last one.

    A step of more rows never counts as shorter: what is below an earlier time is noise.
    """
    import numpy as np

    known = sorted(measured)
    times = np.maximum.accumulate([measured[size] for size in known])
    sizes = [*range(1, min(most, EVERY_SIZE_TO) + 1)]
    while sizes[-1] < most:  # with growing steps: a step of many rows is decided about in coarser ones
        sizes.append(min(most, sizes[-1] + max(8, sizes[-1] // 16)))
    ms = np.interp(sizes, known, times)
    if len(known) > 1:
        slope = (times[-1] - times[0]) / (known[-1] - known[0])
        ms += np.maximum(np.array(sizes) - known[-1], 0) * slope
    return tuple(sizes), tuple(float(x) for x in ms)


def verify_curve(
    facts: Mapping[str, Any],
    *,
    make_engine: Callable[[Mapping[str, Any], StepObserver], Measured],
    run_on: Callable[[Any], Run],
    num_draft: int,
    max_num_seqs: int,
    max_tokens: int,
) -> VerifyCurve:
    """The curve of an engine with these ``facts``, read from its file or measured now.

    :param make_engine: (core settings to change, observer) -> an engine over the real model and caches.
    :param run_on: The engine -> a function that runs prompts on it.
    :param max_tokens: Positions that a sequence, and the caches, hold.
    :raises DeepInferError: a step failed while measuring.
    """
    most = max_num_seqs * (num_draft + 1)
    path = profile_path(profile_key({"verify_curve": VERSION, **facts, "most": most}))
    kept = load(path, most)
    if kept is not None:
        return attrs.evolve(kept, origin=f"read from {path}")
    begin = time.perf_counter()
    watch = StepTimes()
    engine: Any = make_engine({"verify_lengths": "confidence"}, watch)
    watch.times = engine.times
    try:
        points = points_to_measure(num_draft, max_num_seqs, max_tokens)
        measured, sampling = _measure(watch, engine.core, run_on(engine), points, num_draft, most)
    finally:
        engine.close()
    curve = VerifyCurve(*curve_of(measured, most), sampling)
    line = f"measured in {time.perf_counter() - begin:.1f} s at {len(measured)} sizes"
    try:
        record = {"sizes": curve.sizes, "ms": curve.ms, "sampling": sampling}
        write_json(path, {**record, "measured": measured, "facts": dict(facts)})
    except OSError as err:
        return attrs.evolve(curve, origin=f"{line}, not kept: {path}: {err.strerror or err}")
    return attrs.evolve(curve, origin=f"{line}, kept in {path}")


def _measure(
    watch: StepTimes, core: Any, run: Run, points: Sequence[tuple[int, int]], num_draft: int, most: int
) -> tuple[dict[int, float], tuple[tuple[int, int, float], ...]]:
    """Rows of a step -> ms, the median of its steps, and what sampling took by requests.

    Sizes that never came up are left out.
    """
    by_rows: dict[int, list[float]] = {}
    by_reqs: dict[int, list[tuple[int, float]]] = {}
    for seed, (n, rows) in enumerate(points, start=1):
        sizes, ms = [rows, most], [CHEAP_MS, DEAR_MS]
        core.set_verify_curve(sizes if rows < most else [most], ms if rows < most else [CHEAP_MS])
        watch.seen.clear()
        run([prompt_of(PROMPT, seed * 100 + i) for i in range(n)], 2 + STEPS * (rows // n))
        steps = [(at, took, behind) for reqs, at, took, behind in watch.seen if reqs == n]
        for at, took, behind in steps[1:] or steps:
            by_rows.setdefault(at, []).append(took)
            by_reqs.setdefault(n, []).append((at, behind))
    if not by_rows:
        raise EngineError(
            "no decode step could be measured",
            reason="sequences are too short for it",
            remedy="set --draft-schedule fixed, or raise --max-model-len",
        )
    sampling = tuple((n, seen[-1][0], statistics.median(ms for _, ms in seen)) for n, seen in by_reqs.items())
    return {rows: statistics.median(times) for rows, times in by_rows.items()}, sampling


def load(path: Path, most: int) -> VerifyCurve | None:
    """The curve in ``path``; None for a file that is absent, or holds no curve for ``most`` rows."""
    try:
        data = json.loads(path.read_text("utf-8"))
        sizes, ms = tuple(int(x) for x in data["sizes"]), tuple(float(x) for x in data["ms"])
        sampling = tuple((int(n), int(size), float(took)) for n, size, took in data["sampling"])
        rises = all(a < b for a, b in itertools.pairwise(sizes))
        is_whole = len(sizes) == len(ms) and sizes[0] > 0 and sizes[-1] >= most
        are_times = all(0 < x < DEAR_MS for x in ms) and all(n > 0 and 0 <= x < DEAR_MS for n, _, x in sampling)
        return VerifyCurve(sizes, ms, sampling) if is_whole and rises and are_times else None
    except (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError):
        return None
