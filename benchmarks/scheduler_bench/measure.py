"""Runs of a case, and what they say: medians over runs, percentiles over the steps of one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from deepinfer_contracts import StepKind
from deepinfer_native import Core

from .cases import VOCAB, Case
from .control import Control
from .device import Answers, Recorded, Recorder
from .machine import heap_bytes, python_blocks, quiet, rss_bytes
from .pipeline import PHASES, Pipeline, Timed
from .workloads import Workload

Table = npt.NDArray[np.int64]  # [steps, fields of Timed]
STALLS = 10_000  # engine calls in a row without a step


class Stuck(RuntimeError):
    """The workload does not move on: the case is wrong, or the scheduler is."""


def measure(cases: list[Case], progress: Callable[[str], object] = lambda _: None) -> list[dict[str, Any]]:
    """A row for each case. Every run has a fresh core; cases take turns, so that a busy moment touches all of them."""
    runs: dict[str, list[dict[str, Any]]] = {c.name: [] for c in cases}
    with quiet():
        for turn in range(max((c.runs for c in cases), default=0)):
            for case in cases:
                if turn < case.runs:
                    progress(f"run {turn + 1} of {case.runs}: {case.name}")
                    runs[case.name].append(run_once(case, turn))
    return [combine(case, runs[case.name]) for case in cases]


def combine(case: Case, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of the report: medians over the runs of a case, and the best run of what the targets are about."""
    out: dict[str, Any] = {"name": case.name, "group": case.group, "seqs": case.seqs, "k": case.draft}
    out |= {"runs": len(runs)}
    out |= {f"{key}_best": round(min(r[key] for r in runs), 4) for key in ("core_us", "core_us_a_seq", "pack_us_a_seq")}
    out["pack_us_runs"] = [r["us"]["pack"] for r in runs]
    for key, first in runs[-1].items():
        if isinstance(first, dict):
            out[key] = {k: middle([r[key].get(k) for r in runs]) for k in first}
        else:
            out[key] = middle([r[key] for r in runs])
    return out


def middle(values: list[Any]) -> Any:
    known = [v for v in values if v is not None]
    return round(statistics.median(known), 4) if known else None


def run_once(case: Case, seed: int) -> dict[str, Any]:
    """Warm-up, then ``steps`` engine calls with the clock running."""
    answers: Answers | Recorded = Answers(VOCAB, case.draft, case.accepted, case.varlen)
    if case.varlen:
        answers = rehearse(case, seed, answers)
    with Core(case.config()) as core:
        pipeline, work, usual = begin(case, core, seed, answers)
        control = Control(usual, case.steps)
        control.run(case.steps // 2)
        submits, aborts = len(work.submit_ns), len(work.abort_ns)
        steps = np.zeros((case.steps, len(Timed._fields)), np.int64)
        before = core.stats()
        start = python_blocks(), heap_bytes(), rss_bytes()
        tokens, cpu, wall = pipeline.tokens, time.thread_time_ns(), time.perf_counter_ns()
        advance(pipeline, work, steps)
        cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
        end = python_blocks(), heap_bytes(), rss_bytes()
        control.run(case.steps - case.steps // 2)
        after = core.stats()
        out = summarise(steps)
        fresh = work.submit_ns[submits:] or work.submit_ns
        out |= {
            "control_p99_over_p50": control.p99_over_p50(),
            "submit_us": statistics.median(fresh) / 1e3,
            "abort_us": statistics.median(work.abort_ns[aborts:]) / 1e3 if work.abort_ns[aborts:] else None,
            "cpu_share": cpu / wall,
            "python_blocks_grown": end[0] - start[0],
            "heap_bytes_grown": None if end[1] is None or start[1] is None else end[1] - start[1],
            "rss_mib": end[2] / 2**20,
            "rss_mib_grown": (end[2] - start[2]) / 2**20,
            "tokens_a_step": (pipeline.tokens - tokens) / len(steps),
            "preemptions": after.preemptions - before.preemptions,
            "holds": after.holds - before.holds,
            "overrun_rows": after.overrun_rows - before.overrun_rows,
            "pool_used": 1 - (after.main.free + after.main.cached) / after.main.total,
        }
        for name in ("prefix_queries", "prefix_hit_tokens", "prefix_replayed_tokens", "prefix_evictions"):
            if hasattr(after, name):
                out[name] = getattr(after, name) - getattr(before, name)
        pipeline.flush()
        core.check()
    return out


def rehearse(case: Case, seed: int, answers: Answers) -> Recorded:
    """The device's answers to every step of the trace. Steps of varying lengths each have a shape of their own, and to
    make their answers between timed steps would drive the core's memory out of the caches."""
    recorder = Recorder(answers)
    with Core(case.config()) as core:
        pipeline, work, _ = begin(case, core, seed, recorder)
        advance(pipeline, work, np.zeros((case.steps, len(Timed._fields)), np.int64))
    return Recorded(recorder.made)


def begin(
    case: Case, core: Core, seed: int, answers: Answers | Recorder | Recorded
) -> tuple[Pipeline, Workload, float]:
    """A core with all of its requests running and warm, and the usual time of a step so far in microseconds."""
    pipeline = Pipeline(core, answers, case.varlen)
    if case.varlen:
        set_curve(core, case)
    work = Workload(case, pipeline, seed)
    work.fill()
    return pipeline, work, settle(case, pipeline, work)


def set_curve(core: Any, case: Case) -> None:
    """A step time that is flat and then rises, so that verifying everything is not always best."""
    sizes = sorted({1, 2, 4, *range(8, case.seqs * (case.draft + 1) + 8, 8)})
    core.set_verify_curve(sizes, [5.0 + 0.004 * s for s in sizes])


def settle(case: Case, pipeline: Pipeline, work: Workload) -> float:
    """Prefill everybody and let the buffers find their sizes. Returns the median time of the steps after that."""
    if case.load in ("steady", "storm"):
        calls = 0
        while pipeline.core.stats().waiting + pipeline.core.stats().prefill or not pipeline.tokens:
            pipeline.step()
            calls += 1
            if calls > STALLS:
                raise Stuck(f"{case.name}: the prompts are not done after {calls} steps")
    table = np.zeros((case.warmup, len(Timed._fields)), np.int64)
    advance(pipeline, work, table)
    return float(np.median(table[:, : len(PHASES)].sum(axis=1))) / 1e3


def advance(pipeline: Pipeline, work: Workload, table: Table) -> None:
    """As many steps as the table has rows, with arrivals before each; their times in nanoseconds (`Timed`)."""
    at, idle = 0, 0
    while at < len(table):
        work.before_step()
        timed = pipeline.step()
        if timed is not None:
            table[at] = timed
            at, idle = at + 1, 0
        elif (idle := idle + 1) > STALLS:
            raise Stuck(f"{work.case.name}: nothing to schedule {idle} times in a row")


def summarise(table: Table) -> dict[str, Any]:
    """Microseconds a step, by phase and for each sequence; decode steps where there are any, prefill ones beside."""
    is_decode = table[:, Timed._fields.index("kind")] == int(StepKind.DECODE)
    wanted = is_decode if is_decode.any() else ~is_decode
    taken = table[:, Timed._fields.index("switches")] > 0
    disturbed = taken | np.concatenate([[False], taken[:-1]])  # and the step after it, which finds cold caches
    chosen = table[wanted & ~disturbed] if (wanted & ~disturbed).any() else table[wanted]
    times, rows = chosen[:, : len(PHASES)] / 1e3, chosen[:, Timed._fields.index("rows")]
    total = times.sum(axis=1)
    core = times[:, [PHASES.index(p) for p in ("schedule", "commit", "emit")]].sum(axis=1)
    at = {name: float(np.median(times[:, i])) for i, name in enumerate(PHASES)}
    out: dict[str, Any] = {
        "steps": len(chosen),
        "steps_disturbed": int((wanted & disturbed).sum()),  # left out: the system took the core away
        "rows": float(np.median(rows)),
        "us": at,
        "total_us": float(np.median(total)),
        "p99_us": float(np.percentile(total, 99)),
        "least_us": float(total.min()),
        "core_us": float(np.median(core)),  # schedule + commit + emit, what the targets are about
        "core_us_a_seq": float(np.median(core / rows)),
        "pack_us_a_seq": float(np.median(times[:, PHASES.index("pack")] / rows)),
        "p99_over_p50": float(np.percentile(total, 99) / np.median(total)),
    }
    prefill = table[~is_decode]
    if len(prefill) and is_decode.any():
        spent = prefill[:, : len(PHASES)].sum(axis=1) / 1e3
        out |= {
            "prefill_steps": len(prefill),
            "prefill_us": float(np.median(spent)),
            "prefill_us_a_row": float(spent.sum() / prefill[:, Timed._fields.index("rows")].sum()),
        }
    return out
