"""The targets of ``spec/engine.md`` 11.3 beside what was measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

Rows = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Verdict:
    """One target. ``measured`` None: no case of this run tells. For information, ``best``: of the best run, and
    ``machine``: what a plain loop measures in the same run."""

    what: str
    unit: str
    limit: float
    measured: float | None
    best: float | None = None
    machine: float | None = None

    @property
    def word(self) -> str:
        if self.measured is None:
            return "not run"
        return "pass" if self.measured <= self.limit else "miss"


def verdicts(rows: Rows) -> list[Verdict]:
    """Every target; ``rows`` by case name."""

    def timed(what: str, unit: str, limit: float, case: str, key: str) -> Verdict:
        return Verdict(what, unit, limit, get(rows, case, key), get(rows, case, f"{key}_best"))

    out = [timed("schedule + commit + emit, N = 1, K = 0", "us", 3.0, "decode-1-k0", "core_us")]
    for k, limit in ((0, 0.06), (5, 0.10)):
        for n in (256, 1024, 4096):
            what = f"schedule + commit + emit, N = {n}, K = {k}"
            out.append(timed(what, "us a sequence", limit, f"decode-{n}-k{k}", "core_us_a_seq"))
    out.append(timed("variable lengths, N = 1024, in total", "us", 100.0, "varlen-1024", "core_us"))
    for n in (256, 1024, 4096):
        out.append(timed(f"pack, N = {n}, K = 0", "us a sequence", 0.05, f"decode-{n}-k0", "pack_us_a_seq"))
    out.append(Verdict("pack at 128k / pack at 4k tokens of context", "ratio", 1.05, context_slope(rows)))
    for k in (0, 5):
        out.append(Verdict(f"boundary checks, N = 256, K = {k}", "share of a step", 0.03, check_share(rows, k)))
    for k in (0, 5):
        out.append(Verdict(f"growth exponent, N = 256 .. 4096, K = {k}", "", 1.1, growth_exponent(rows, k)))
    for name in ("decode-1-k0", "decode-256-k0", "decode-1024-k0", "decode-4096-k0", "decode-256-k5"):
        machine = get(rows, name, "control_p99_over_p50")
        out.append(Verdict(f"p99 / p50, {name}", "", 2.0, get(rows, name, "p99_over_p50"), machine=machine))
    return out


def get(rows: Rows, name: str, key: str) -> float | None:
    return rows[name].get(key) if name in rows else None


def growth_exponent(rows: Rows, k: int) -> float | None:
    """Slope of log(time) over log(N) of schedule + commit + emit."""
    points = [(n, get(rows, f"decode-{n}-k{k}", "core_us")) for n in (256, 1024, 4096)]
    if any(us is None for _, us in points):
        return None
    n, us = np.log(np.array(points, float)).T
    return round(float(np.polyfit(n, us, 1)[0]), 3)


def check_share(rows: Rows, k: int) -> float | None:
    """Of the host time of a step that is spent on boundary validation (``spec/engine.md`` 6.9)."""
    plain, checked = (get(rows, f"validate-{level}-k{k}", "total_us") for level in ("off", "boundary"))
    return round(1 - plain / checked, 3) if plain and checked else None


def context_slope(rows: Rows) -> float | None:
    """Median over the turns of the ratio of two runs that followed each other: a busy moment touches both."""
    short, long = (rows.get(f"context-{k}k") for k in (4, 128))
    if not short or not long:
        return None
    ratios = [b / a for a, b in zip(short["pack_us_runs"], long["pack_us_runs"], strict=True)]
    return round(statistics.median(ratios), 3)
