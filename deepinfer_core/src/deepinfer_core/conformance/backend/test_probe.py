"""The probe runs in a child process, soon answers, and leaves nothing behind (``spec/plugins.md`` 9)."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.conformance.fresh import run_fresh
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.probe import LIMIT_S

pytestmark = [pytest.mark.level("smoke"), pytest.mark.hook("deepinfer_backend_probe")]


@pytest.fixture(scope="module")
def answers(manager: PluginManager, subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the probe says when it is asked twice. It is run once for all tests of this file."""
    if manager.hook(subject.record, "deepinfer_backend_probe") is None:
        pytest.skip("not offered: deepinfer_backend_probe")
    entry = subject.record.entry
    with pytest.MonkeyPatch.context() as monkeypatch:
        found = run_fresh(
            "deepinfer_core.conformance.observed:probe_twice",
            [entry.group, entry.name, entry.value],
            tmp_path_factory.mktemp("probe"),
            monkeypatch,
            what="the probe",
            limit_s=2 * LIMIT_S,
        )
    twice: list[dict[str, Any]] = found["answers"]
    return twice


def test_probe_gives_a_report(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        if "report" not in answer:
            fail(f"the probe has no report, but failed in phase {answer['phase']}", got=answer["error"])


def test_probe_asked_twice_says_the_same(answers: list[dict[str, Any]]) -> None:
    require_equal(answers[1], answers[0], "the second answer of the probe differs from the first")


def test_probe_report_is_consistent(answers: list[dict[str, Any]], subject: Subject) -> None:
    report = answers[0]["report"]
    require(report["present"] or not report["usable"], "a device that is not present is said to be usable")
    require(report["usable"] or report["reasons"], "the probe says that the device is not usable, and not why")
    require(not report["usable"] or report["devices"], "the probe says that the device is usable, and names none")
    arch, known = report["arch"], subject.record.table.arch
    if report["usable"] and arch and known:
        require(arch in known, "the device is of no arch of the manifest", got=arch, expected=known)
