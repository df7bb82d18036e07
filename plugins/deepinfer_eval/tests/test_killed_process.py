"""``deepinfer eval generate`` as a process that is killed or interrupted: nothing is lost, nothing is there twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from eval_files import write_lines

from deepinfer_core.cli import main

SAMPLES, ITEMS = 3, 5
LIMIT_S = 90.0


def arguments(out: Path, dataset: Path) -> list[str]:
    options = ("-n", str(SAMPLES), "--max-tokens", "24", "--seed", "1", "--deterministic", "batch")
    engine = ("--backend", "cpu", "--max-num-seqs", "3", "--ignore-eos")
    return ["eval", "generate", str(dataset), "--out", str(out), *options, *engine]


def stopped_after(lines: int, out: Path, dataset: Path, number: signal.Signals) -> subprocess.Popen[bytes]:
    """A run that gets the signal when the file has so many lines."""
    command = [sys.executable, "-m", "deepinfer_core.cli", *arguments(out, dataset)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < end:
        if out.exists() and out.read_bytes().count(b"\n") >= lines:
            process.send_signal(number)
            break
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.01)
    process.wait(LIMIT_S)
    return process


@pytest.mark.timeout(300)
def test_killed_and_interrupted_runs_end_with_the_answers_of_one_that_was_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    dataset = write_lines(
        tmp_path / "d.jsonl", [{"id": f"i{i}", "question": f"def f{i}(", "answer": ""} for i in range(ITEMS)]
    )
    whole, out = tmp_path / "whole.jsonl", tmp_path / "a.jsonl"
    assert main(arguments(whole, dataset)) == 0
    killed = stopped_after(3, out, dataset, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    kept = out.read_bytes()
    interrupted = stopped_after(7, out, dataset, signal.SIGINT)
    assert interrupted.returncode == 130
    assert b"deepinfer: interrupted" in interrupted.communicate()[1]
    assert out.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    capsys.readouterr()
    assert main(arguments(out, dataset)) == 0
    assert capsys.readouterr().out.startswith(f"{SAMPLES * ITEMS} of {SAMPLES * ITEMS} answers")
    want, got = ([json.loads(line) for line in path.read_bytes().splitlines()] for path in (whole, out))
    for header in (want[0], got[0]):
        header["run"]["versions"].pop("xgrammar", None)  # named where it is loaded: in a process of tests, maybe
    assert want[0] == got[0]
    key = lambda record: (record["item"], record["sample"])  # noqa: E731  # one word in two places
    assert sorted(got[1:], key=key) == sorted(want[1:], key=key)
