"""Every end state of a plugin, as a person meets it: the whole text, the exit status, and what was imported."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_venv import FakeVenv, cases
from transcripts import Runner, parse

ROOT = Path(__file__).parent
CASES = [path.name for path in cases(ROOT)]


def compare(runner: Runner, case: str) -> None:
    folder = ROOT / case
    wrong = []
    for step in parse((folder / "transcript.txt").read_text()):
        got = runner.lines(step.command, folder)
        if got != step.lines:
            wrong += [f"$ {step.command}", "--- expected", *step.lines, "--- got", *got, ""]
    if wrong:
        raise AssertionError("\n".join(["", *wrong]))


@pytest.mark.timeout(300)  # some wait for a limit to pass
@pytest.mark.parametrize("case", CASES)
def test_case_leaves_its_transcript(crowd: Runner, case: str) -> None:
    compare(crowd, case)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_case_leaves_its_transcript_in_processes_of_its_own(crowd_venv: FakeVenv, case: str) -> None:
    compare(Runner(crowd_venv), case)
