"""How the benchmark condenses what it measured: ratios, exponents, verdicts, and a machine left as it was."""

import gc
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from scheduler_bench.against import comparison
from scheduler_bench.cases import decode_cases, other_cases
from scheduler_bench.machine import quiet
from scheduler_bench.targets import growth_exponent, verdicts


def row(name, core_us, seqs):
    return {
        "name": name,
        "core_us": core_us,
        "core_us_a_seq": core_us / seqs,
        "pack_us_a_seq": 0.01,
        "p99_over_p50": 1.5,
    }


def test_regression_needs_the_median_and_the_best_run_to_be_slower():
    slower = comparison("x", [20.0, 21.0, 22.0], [10.0, 10.0, 11.0])
    assert (slower.ratio, slower.best_ratio) == (2.0, 2.0)
    assert slower.regresses(1.15)
    noisy = comparison("x", [10.0, 21.0, 22.0], [10.0, 10.0, 11.0])
    assert noisy.ratio > 1.15
    assert not noisy.regresses(1.15)


def test_growth_of_linear_times_is_one():
    rows = {f"decode-{n}-k0": row(f"decode-{n}-k0", 0.05 * n, n) for n in (256, 1024, 4096)}
    assert growth_exponent(rows, 0) == pytest.approx(1.0)
    assert growth_exponent(rows, 5) is None


def test_target_passes_at_its_limit_and_misses_above():
    rows = {"decode-256-k0": row("decode-256-k0", 0.06 * 256, 256), "decode-256-k5": row("decode-256-k5", 26.0, 256)}
    words = {v.what: v.word for v in verdicts(rows)}
    assert words["schedule + commit + emit, N = 256, K = 0"] == "pass"
    assert words["schedule + commit + emit, N = 256, K = 5"] == "miss"
    assert words["schedule + commit + emit, N = 4096, K = 0"] == "not run"


def test_quiet_gives_the_collector_and_the_cores_back():
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    with quiet():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert before is None or os.sched_getaffinity(0) == before


def test_cases_have_names_of_their_own():
    names = [c.name for c in [*decode_cases(), *other_cases()]]
    assert len(names) == len(set(names))
