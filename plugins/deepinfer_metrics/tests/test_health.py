"""The rules of health, at their edges."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer_metrics.health import Health, percentile


@pytest.fixture
def health(view: Any) -> Health:
    made = Health()
    made.started(view)
    return made


def test_engine_at_work_is_well(health: Health) -> None:
    assert (health.startup(), health.live(), health.ready()) == ([], [], [])


def test_engine_that_loads_lives_and_is_neither_started_nor_ready() -> None:
    health = Health()
    assert health.live() == []
    assert health.startup() == health.ready() == ["the model is not loaded yet"]


def test_engine_that_is_closed_lives_and_is_not_ready(health: Health, view: Any) -> None:
    view.progress_age_s = 1e6
    health.close()
    assert (health.live(), health.ready(), health.startup()) == ([], ["the engine is closed"], [])


@pytest.mark.parametrize(("live", "age", "well"), [(1, 9.99, True), (1, 10.0, False), (0, 1e6, True)])
def test_live_wants_progress_of_an_engine_with_work(
    health: Health, view: Any, live: int, age: float, well: bool
) -> None:
    view.num_live, view.progress_age_s = live, age
    assert (health.live() == []) is well


@pytest.mark.parametrize(
    ("steps", "age", "well"),
    [
        ([], 30.0, True),
        ([], 30.1, False),
        ([0.1] * 1000, 30.1, False),
        ([2.0] * 1000, 39.9, True),
        ([2.0] * 1000, 40.1, False),
        ([0.1] * 989 + [5.0] * 11, 99.0, True),
        ([0.1] * 990 + [5.0] * 10, 31.0, False),  # the 99th percentile is the 990th of 1000
        ([60.0] * 500 + [0.1] * 1000, 31.0, False),  # the last thousand count
    ],
)
def test_ready_fails_when_a_step_stalls(health: Health, view: Any, steps: list[float], age: float, well: bool) -> None:
    for seconds in steps:
        health.step(seconds)
    view.in_flight_s = age
    assert (health.ready() == []) is well


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_in_flight": 3}, "3 steps are in flight, at most 2 may be"),
        ({"fault": "no step"}, "the engine stopped after a fault: no step"),
        ({"leak": "block 3"}, "memory was not given back: block 3"),
    ],
)
def test_ready_fails_for_each_fault_by_name(health: Health, view: Any, change: dict[str, Any], text: str) -> None:
    for name, value in change.items():
        setattr(view, name, value)
    assert health.ready() == [text]


def test_percentile_is_a_value_that_was_there() -> None:
    assert percentile((), 0.99) == 0
    assert percentile((3.0,), 0.99) == 3
    assert percentile(tuple(map(float, range(1, 101))), 0.99) == 99
    assert percentile((2.0, 1.0), 0.5) == 1
