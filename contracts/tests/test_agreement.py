"""The C validators and the Python ones are compiled from the same text: they must say the same of every record."""

from __future__ import annotations

from itertools import islice

import pytest
from c_library import CLibrary, python_verdict
from corruptions import corruptions
from recorded import CASES, limits, record

from deepinfer_contracts import Level


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_recorded_record_is_accepted_by_both(c_checks: CLibrary, kind: str, name: str) -> None:
    step = record(kind, "SchedulerOutputs")
    for level in Level:
        assert c_checks.check(record(kind, name), limits(), level, step) is None
        assert python_verdict(record(kind, name), limits(), level, step) is None


def disagreements(library: CLibrary, kind: str, name: str, level: Level, part: slice) -> list[str]:
    """Verdicts on the damaged records of ``part`` that differ, at most ten."""
    bounds = limits()
    step = record(kind, "SchedulerOutputs") if level is Level.FULL else None
    scratch = 1 << 14 if kind == "decode" else 0  # with and without memory for uniqueness
    out = []
    for _, label, damaged in islice(corruptions(record(kind, name)), part.start, part.stop, part.step):
        ours = python_verdict(damaged, bounds, level, step)
        theirs = library.check(damaged, bounds, level, step, scratch)
        if ours != theirs:
            out.append(f"{label}: Python {ours}, C {theirs}")
    return out[:10]


@pytest.mark.parametrize("level", [Level.BOUNDARY, Level.FULL])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_damaged_record_gets_the_same_verdict(c_checks: CLibrary, kind: str, name: str, level: Level) -> None:
    # Every damage is judged, at one of the levels: neighbours in the list damage one array in similar ways.
    different = disagreements(c_checks, kind, name, level, slice(int(level is Level.FULL), None, 2))
    assert not different, "\n".join(different)


@pytest.mark.slow
@pytest.mark.parametrize("level", [Level.BOUNDARY, Level.FULL])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_damaged_record_gets_the_same_verdict_at_both_levels(
    c_checks: CLibrary, kind: str, name: str, level: Level
) -> None:
    different = disagreements(c_checks, kind, name, level, slice(0, None, 1))
    assert not different, "\n".join(different)
