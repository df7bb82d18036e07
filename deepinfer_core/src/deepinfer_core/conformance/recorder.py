"""Gathers outcomes while the tests run, and writes the report when they are done, however they end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from deepinfer_core.conformance import report
from deepinfer_core.conformance.known_failures import KnownFailure
from deepinfer_core.conformance.options import option
from deepinfer_core.conformance.selection import Collected
from deepinfer_core.conformance.subject import Subject

SUFFIXES = (".json", ".html")


@define
class Outcome:
    """What became of one test."""

    facts: dict[str, Any]
    outcome: str = ""
    reason: str = ""
    seconds: float = 0.0
    typed: bool = True
    """Whether a failure is of the kit or a typed error, and no other exception."""
    tolerances: list[dict[str, Any]] = field(factory=list)


class Recorder:
    """One for each run, in the process that a person started."""

    def __init__(self, config: pytest.Config, subject: Subject, known: list[KnownFailure]) -> None:
        self.subject = subject
        self.known = known
        self.level = str(option(config, "level"))
        self.outcomes: dict[str, Outcome] = {}
        self.started = time.time()
        self.begun = time.perf_counter()
        given = option(config, "report")
        self.files = [Path(str(name)) for name in given] if isinstance(given, list) else []
        self.document: dict[str, Any] | None = None
        for path in self.files:
            if path.suffix not in SUFFIXES:
                raise pytest.UsageError(f"--report {path}: the name must end in {' or '.join(SUFFIXES)}")

    def begin(self) -> None:
        """Write a report that says it is incomplete: none of an earlier run may be taken for that of this one.

        :raises pytest.UsageError: a file cannot be written.
        """
        try:
            self._write(Collected(), complete=False)
        except OSError as exc:
            shown = " ".join(str(path) for path in self.files)
            raise pytest.UsageError(f"--report {shown}: {exc.strerror}; give files in folders that exist") from exc
        except ModuleNotFoundError as exc:
            raise pytest.UsageError(
                f"--report FILE.html needs {exc.name}: pip install 'deepinfer-core[conformance]'"
            ) from exc

    def add(self, result: pytest.TestReport) -> None:
        """Take one phase of one test."""
        properties: dict[str, Any] = dict(result.user_properties)
        facts = properties.get("deepinfer_conformance")
        if facts is None:
            return
        entry = self.outcomes.setdefault(facts["test"], Outcome({k: v for k, v in facts.items() if k != "tolerances"}))
        entry.seconds += result.duration
        entry.tolerances = facts.get("tolerances", entry.tolerances)
        outcome = _phase_outcome(result)
        if outcome and entry.outcome not in ("failed", "error"):
            entry.outcome = outcome
            failure = properties.get("deepinfer_failure", {})
            entry.reason = _reason(result, failure)
            entry.typed = outcome != "failed" or bool(failure.get("typed", False))

    def finish(self, collected: Collected, exitstatus: int) -> None:
        """Write the reports."""
        tests_ran = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        meant = [t for t in collected.tests if report.within(t, self.level)]
        ended = all(test["test"] in self.outcomes or test["test"] in collected.left_out for test in meant)
        self._write(collected, complete=tests_ran and ended and bool(meant))

    def summary_lines(self) -> list[str]:
        """The verdict, for the end of the terminal's output."""
        if self.document is None:
            return []
        lines = [f"conformance of {self.subject.record.title}: {self.document['verdict']['text']}"]
        untested = [c["claim"] for c in self.document["claims"] if c["status"] == "claimed, not tested"]
        if untested and self.document["verdict"]["word"] in ("passed", "failed") and not self.document["partial"]:
            lines.append(f"claimed, not tested: {', '.join(untested)}")
        return lines + [f"report: {path}" for path in self.files]

    def _write(self, collected: Collected, *, complete: bool) -> None:
        self.document = report.document(
            subject=self.subject,
            level=self.level,
            outcomes=[self.outcomes[test] for test in sorted(self.outcomes)],
            collected=collected,
            known=self.known,
            complete=complete,
            started=self.started,
            seconds=time.perf_counter() - self.begun,
        )
        for path in self.files:
            report.write(self.document, path)


def _phase_outcome(result: pytest.TestReport) -> str:
    """What a phase decides about the test; empty if nothing."""
    known = hasattr(result, "wasxfail")
    if result.failed:
        return "failed" if result.when == "call" else "error"
    if result.skipped:
        return "known failure" if known else "skipped"
    return "passed" if result.when == "call" else ""


def _reason(result: pytest.TestReport, failure: dict[str, Any]) -> str:
    if hasattr(result, "wasxfail") and not result.failed:
        return str(result.wasxfail)
    if failure:
        return str(failure["text"])
    if result.skipped and isinstance(result.longrepr, tuple):
        return str(result.longrepr[2]).removeprefix("Skipped: ")
    return str(result.longrepr) if result.failed and result.longrepr else ""
