"""``deepinfer generate`` as a process: pipes that close early and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from engine_toys import save_tokenizer

PROMPTS = 3000


@pytest.fixture
def process(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A run with far more output than a pipe holds, so that it cannot end before its output is read."""
    save_tokenizer(tmp_path)
    source = tmp_path / "in.txt"
    source.write_text("".join(f"prompt {i}\n" for i in range(PROMPTS)))
    return subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("toy_command.py")),
            *("generate", "--prompts-file", str(source), "--json", "--max-tokens", "2", "--validation", "off"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TOY_MODEL": str(tmp_path)},
    )


def test_reader_that_leaves_early_ends_the_run_quietly(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["index"] == 0
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(60) == 141
    assert err == b"backend: toy (test)\n"


def test_interrupt_leaves_whole_lines_and_status_130(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    err = process.stderr.read()
    rows = [json.loads(line) for line in (first + rest).splitlines()]
    assert process.wait(60) == 130
    assert err == b"backend: toy (test)\ndeepinfer: interrupted\n"
    assert len(rows) < PROMPTS
    finished = [row["index"] for row in rows if row["finish_reason"] != "abort"]
    assert finished == sorted(set(finished))


def test_standard_input_that_waits_gets_each_answer_at_once(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    command = [sys.executable, str(Path(__file__).with_name("toy_command.py")), "generate", "-", "--json"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TOY_MODEL": str(tmp_path)},
    ) as asked:
        assert asked.stdin is not None
        assert asked.stdout is not None
        for prompt in ("one", "two", "three"):
            asked.stdin.write(prompt.encode() + b"\n")
            asked.stdin.flush()
            assert json.loads(asked.stdout.readline())["prompt"] == prompt
        asked.stdin.close()
        assert asked.wait(60) == 0
