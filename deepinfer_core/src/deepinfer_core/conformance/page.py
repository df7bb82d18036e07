"""The report as one self-contained page that an author can publish."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

ORDER = ("failed", "error", "not run", "known failure", "skipped", "passed")
"""Outcomes in the order in which a reader wants to see them."""


def render(data: Mapping[str, Any]) -> str:
    """HTML of a report document."""
    import jinja2  # part of the extra [conformance]; a run without --report FILE.html does not need it

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("deepinfer_core.conformance"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(report=data, areas=areas(data["tests"]))


def areas(tests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tests by area: the counts of each, and the tests with the bad ones first."""
    result = []
    for name, group in groupby(sorted(tests, key=lambda test: (test["area"], test["test"])), lambda test: test["area"]):
        members = sorted(group, key=lambda test: ORDER.index(test["outcome"]))
        counts = {outcome: sum(test["outcome"] == outcome for test in members) for outcome in ORDER}
        seconds = sum(test["seconds"] for test in members)
        result.append({"name": name, "tests": members, "counts": counts, "seconds": seconds})
    return sorted(result, key=_rank)


def _rank(area: Mapping[str, Any]) -> tuple[int, str]:
    """Areas with something bad first; last those of which nothing ran, such as all that a row sampler does not have."""
    counts = area["counts"]
    bad = counts["failed"] or counts["error"]
    return (0 if bad else 2 if counts["skipped"] == len(area["tests"]) else 1), area["name"]
