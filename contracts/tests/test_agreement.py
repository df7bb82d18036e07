"""The C validators and the Python ones are compiled from the same text: they must say the same of every record."""

from __future__ import annotations

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


@pytest.mark.parametrize("level", [Level.BOUNDARY, Level.FULL])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_damaged_record_gets_the_same_verdict(c_checks: CLibrary, kind: str, name: str, level: Level) -> None:
    step = record(kind, "SchedulerOutputs") if level is Level.FULL else None
    scratch = 1 << 14 if kind == "decode" else 0  # with and without memory for uniqueness
    different = []
    for _, label, damaged in corruptions(lambda: record(kind, name)):
        ours = python_verdict(damaged, limits(), level, step)
        theirs = c_checks.check(damaged, limits(), level, step, scratch)
        if ours != theirs:
            different.append(f"{label}: Python {ours}, C {theirs}")
    assert not different, "\n".join(different[:10])
