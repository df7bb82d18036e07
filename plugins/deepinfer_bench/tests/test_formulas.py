"""Rates and the roofline, by numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from deepinfer_bench.ceilings import Ceilings, measure_ceilings, roofline
from deepinfer_bench.formulas import acceptance, full_acceptance_rate, user_rate
from deepinfer_core.types import OpFloor


def test_full_acceptance_counts_every_draft_and_shares_them_among_ranks():
    assert full_acceptance_rate(50, 8, 5) == 50 * 8 * 6
    assert full_acceptance_rate(50, 8, 5, cp=2) == 50 * 8 * 3
    assert full_acceptance_rate(50, 8, 0) == 400


def test_user_rate_is_that_of_one_request():
    assert user_rate(400, 8) == 50


def test_acceptance_is_that_of_the_window_alone():
    before = {"verified": [10, 10], "accepted": [9, 5], "request_steps": 10, "output_tokens": 24}
    after = {"verified": [30, 30], "accepted": [19, 6], "request_steps": 30, "output_tokens": 55}
    assert acceptance(before, after) == {
        "verified": [20, 20],
        "accepted": [10, 1],
        "by_place": [0.5, 0.05],
        "accepted_share": 11 / 40,
        "tokens_per_request_step": 31 / 20,
    }


def test_acceptance_of_a_sampler_that_does_not_count_is_unknown():
    nothing = {"verified": [], "accepted": [], "request_steps": 0, "output_tokens": 0}
    found = acceptance(nothing, nothing)
    assert (found["accepted_share"], found["tokens_per_request_step"]) == (None, None)


def test_floor_of_a_step_is_the_sum_of_what_bounds_each_op():
    ceilings = Ceilings(copy=1e9, matmul=1e12, dtype="float32")
    parts = [OpFloor("moves", 2e6, 1e6), OpFloor("computes", 1e3, 3e9)]
    found = roofline(parts, ceilings, 0.01)
    assert found["floor_ms"] == pytest.approx(2 + 3)
    assert found["floor_share"] == pytest.approx(0.5)
    assert found["copy_share"] == pytest.approx(2.001e6 / 1e9 / 0.01)
    assert found["matmul_share"] == pytest.approx(3.001e9 / 1e12 / 0.01)


@pytest.mark.parametrize(("room", "sizes"), [(1, [1]), (4, [1, 2, 4]), (9, [1, 2, 4])])
def test_ceilings_take_smaller_arrays_where_memory_is_short(monkeypatch, room, sizes):
    tried = []

    def measured(where, part, clock):
        tried.append(part)
        if part < room:
            raise torch.OutOfMemoryError("none left")
        return Ceilings(1.0, 1.0, "float32")

    monkeypatch.setattr("deepinfer_bench.ceilings._measured", measured)
    assert (measure_ceilings("cpu") is None) == (room == 9)
    assert tried == sizes


def test_ceilings_are_the_best_of_several_on_the_clock_that_is_given(monkeypatch):
    monkeypatch.setattr("deepinfer_bench.ceilings.COPY_BYTES", {"cpu": 4000})
    monkeypatch.setattr("deepinfer_bench.ceilings.SQUARE", {"cpu": 10})
    steps = iter(0.5 * i for i in range(1000))
    found = measure_ceilings("cpu", lambda: next(steps))  # each call of it takes half a second
    assert found == Ceilings(copy=2 * 4000 / 0.5, matmul=2 * 10**3 / 0.5, dtype="float32")
