"""The order in which the published page tells what was found."""

from __future__ import annotations

from deepinfer_core.conformance.page import areas


def test_areas_with_failures_come_first_and_those_of_which_nothing_ran_last():
    outcomes = {"masks": "skipped", "seeds": "passed", "greedy": "skipped", "draws": "error", "rows": "passed"}
    tests = [{"area": area, "test": "t", "outcome": outcome, "seconds": 0.0} for area, outcome in outcomes.items()]
    assert [area["name"] for area in areas(tests)] == ["draws", "rows", "seeds", "greedy", "masks"]
