"""Run the conformance kit on mutants, many in one process: ``python run_mutants.py AREA`` (a module beside this one).

A mutant is *caught* if the first test that fails does so with a ConformanceFailure or a typed error, and not with
whatever a wrong value breaks further on. The tests that caught mutants are then run on the sound backend, which they
must pass: a test that fails for everybody catches nothing. Prints JSON: ``{"mutants": [...], "sound": [...]}``.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

import mutant_backends  # noqa: E402
import pytest  # noqa: E402
from mutant import Mutant  # noqa: E402

import deepinfer_core.conformance as kit  # noqa: E402

KIT = Path(str(kit.__file__)).resolve().parent
INFRASTRUCTURE = ("layout_faults", "mutant", "mutant_backends", "run_mutants", "toy_plugins", "run_toys", "conftest")


def areas() -> list[str]:
    """Modules of mutants beside this one."""
    names = sorted(path.stem for path in HERE.glob("*.py"))
    return [name for name in names if name not in INFRASTRUCTURE and not name.startswith("test_")]


class Outcomes:
    """A pytest plugin that keeps what failed."""

    def __init__(self) -> None:
        self.ran = 0
        self.failures: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran += report.when == "call"
        if report.failed:
            properties: dict[str, Any] = dict(report.user_properties)
            failure = properties.get("deepinfer_failure", {"text": str(report.longrepr), "typed": False})
            test = properties.get("deepinfer_conformance", {}).get("test", report.nodeid)
            self.failures.append({"test": test, **failure})


def run_kit(kind: str, name: str, tests: Iterable[str], *options: str) -> tuple[Outcomes, str]:
    """Run tests of the kit (paths within it) on a plugin. What pytest printed comes second."""
    outcomes, printed = Outcomes(), io.StringIO()
    arguments = ["-p", "deepinfer_core.conformance.pytest_plugin", "-p", "no:cacheprovider", "-q", "--capture=sys"]
    arguments += ["-W", "ignore", "-c", os.devnull, "--rootdir", os.getcwd(), f"--{kind.replace('_', '-')}", name]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        pytest.main([*arguments, *options, *(str(KIT / test) for test in tests)], plugins=[outcomes])
    return outcomes, printed.getvalue()


def judge(mutant: Mutant, backend: str) -> dict[str, Any]:
    """Whether and how the kit catches a mutant."""
    options = ["-x", *mutant.options, "--level", mutant.level, *(["-k", mutant.test] if mutant.test else [])]
    subject = backend if mutant.kind == "backend" and not mutant.subject else mutant.subject
    begun = time.process_time()
    with mutant.apply() if mutant.apply is not None else contextlib.nullcontext():
        outcomes, printed = run_kit(mutant.kind, subject, mutant.caught_by.split(), *options)
    result: dict[str, Any] = {"name": mutant.name, "seconds": round(time.process_time() - begun, 2)}
    if outcomes.failures:
        failure = outcomes.failures[0]
        status = "caught" if failure["typed"] else "crashed"
        return {**result, "status": status, "test": failure["test"], "text": failure["text"]}
    status = "survived" if outcomes.ran else "nothing ran"
    return {**result, "status": status, "test": "", "text": "" if outcomes.ran else printed[-2000:]}


def judge_sound(mutants: Sequence[Mutant], results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What of the tests that caught mutants fails without the fault: nothing may."""
    groups: dict[tuple[str, str, tuple[str, ...]], set[str]] = {}
    for mutant, result in zip(mutants, results, strict=True):
        if result["status"] == "caught":
            subject = mutant.subject or mutant_backends.SOUND
            groups.setdefault((mutant.kind, subject, mutant.options), set()).add(result["test"])
    failures = []
    for (kind, subject, options), tests in sorted(groups.items()):
        outcomes, printed = run_kit(kind, subject, sorted(tests), "--level", "full", *options)
        failures += outcomes.failures
        if outcomes.ran < len(tests):
            failures.append({"test": f"{outcomes.ran} of {len(tests)} ran", "typed": False, "text": printed[-2000:]})
    return failures


def main(area: str) -> int:
    mutants: list[Mutant] = importlib.import_module(area).MUTANTS
    names = {f"m{place:03}": mutant for place, mutant in enumerate(mutants)}
    with tempfile.TemporaryDirectory() as folder:
        site, work, scratch = (Path(folder, name) for name in ("site", "work", "scratch"))
        for made in (site, work, scratch):
            made.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)  # what mutants leave behind goes with it
        mutant_backends.install({name: m for name, m in names.items() if m.kind == "backend"}, site)
        before = os.getcwd()
        os.chdir(work)
        try:
            results = [judge(mutant, name) for name, mutant in names.items()]
            sound = judge_sound(mutants, results)
        finally:
            os.chdir(before)
    sys.stdout.write(json.dumps({"mutants": results, "sound": sound}, indent=1) + "\n")
    return int(bool(sound) or any(result["status"] != "caught" for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
