"""How the benchmark condenses what it measured: ratios, exponents, verdicts, and a machine left as it was."""

import gc
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from deepinfer_contracts import SamplerOutput

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from scheduler_bench.against import comparison
from scheduler_bench.cases import decode_cases, other_cases
from scheduler_bench.control import Control
from scheduler_bench.device import Recorded
from scheduler_bench.machine import quiet
from scheduler_bench.report import target_lines
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


def test_spread_of_steps_is_told_beside_that_of_the_machine():
    rows = {"decode-1-k0": {**row("decode-1-k0", 2.0, 1), "control_p99_over_p50": 1.25}}
    (found,) = (v for v in verdicts(rows) if v.what == "p99 / p50, decode-1-k0")
    assert (found.measured, found.machine, found.word) == (1.5, 1.25, "pass")
    assert any("a plain loop of that length: 1.250" in line for line in target_lines([found]))


def test_control_measures_no_less_than_its_median():
    control = Control(5.0, 20)
    control.run(12)
    control.run(8)
    spread = control.p99_over_p50()
    assert spread is None or spread >= 1  # None: the system interrupted every turn


def answered(*lengths):
    """One answer for each step, of so many rows."""
    return [
        SamplerOutput(
            sampled_ids=np.full(n, i, np.int32),
            sampled_logprob=np.zeros(n, np.float32),
            row_status=np.zeros(n, np.int8),
            draft_ids=np.full((n, 2), i, np.int32),
        )
        for i, n in enumerate(lengths)
    ]


def step(rows):
    return SimpleNamespace(step_id=1, num_reqs=rows)


def test_recorded_answers_take_turns_in_two_sets_of_buffers():
    device = Recorded(answered(3, 3, 3, 2, 3))
    outs = [device.answer(step(n)) for n in (3, 3, 3)]
    assert outs[2].draft_ids is outs[0].draft_ids  # the set's own, as long as the length stays
    assert outs[1].draft_ids is not outs[0].draft_ids
    assert [o.sampled_ids.tolist() for o in outs] == [[2] * 3, [1] * 3, [2] * 3]
    shorter = device.answer(step(2))
    assert (shorter.sampled_ids.tolist(), shorter.draft_ids.shape) == ([3, 3], (2, 2))
    with pytest.raises(ValueError, match="has 9 requests, its answer 3"):
        device.answer(step(9))
