"""``deepinfer eval generate`` into what is no file of its own: standard output under another name, pipes, devices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

OPTIONS = ("--backend", "cpu", "--max-tokens", "4", "--seed", "3")
COMMAND = (sys.executable, "-m", "deepinfer_core.cli", "eval", "generate")
TOLD = "2 of 2 answers in /dev/stdout, 2 of them new"


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("streams") / "items.jsonl"
    path.write_text('{"question": "1+1=", "answer": "2"}\n{"question": "2+1=", "answer": "3"}\n')
    return path


def shell(line: str, *words: str) -> subprocess.CompletedProcess[str]:
    """``line`` in a shell; ``"$@"`` in it is the command, which ends with ``words``."""
    return subprocess.run(
        ["bash", "-c", line, "bash", *COMMAND, *words], capture_output=True, text=True, timeout=120, check=False
    )


def keys(text: str) -> list[object]:
    """Of each line: its id, and True for the header."""
    return [record.get("id", "deepinfer_eval" in record) for record in map(json.loads, text.splitlines())]


def test_standard_output_that_is_a_file_gets_lines_and_messages_in_order(items: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    shell(f'{{ "$@"; echo last; }} > {out} 2>&1', str(items), "--out", "/dev/stdout", *OPTIONS)
    first, *lines, told, last = out.read_text().splitlines()
    assert first.startswith("backend: cpu")
    assert (keys("\n".join(lines)), told, last) == ([True, "1", "2"], TOLD, "last")
    out.write_text("\n".join(lines[:2]) + "\n")
    done = shell(f'"$@" >> {out}', str(items), "--out", "/dev/stdout", *OPTIONS)
    assert "1 of them new" in done.stderr  # it goes on with what is there
    assert keys(out.read_text()) == [True, "1", "2"]


@pytest.mark.parametrize("out", ["/dev/stdout", "fifo"])
def test_pipe_gets_the_lines(items: Path, tmp_path: Path, out: str) -> None:
    if out == "fifo":
        out = str(tmp_path / "fifo")
        line = f'mkfifo {out}; "$@" > {tmp_path}/said & cat {out}; wait $!'
    else:
        line = '"$@" | cat'
    done = shell(line, str(items), "--out", out, *OPTIONS)
    assert (done.returncode, keys(done.stdout)) == (0, [True, "1", "2"])


def test_reader_that_leaves_ends_the_command(items: Path) -> None:
    done = shell('"$@" | head -c 9; exit ${PIPESTATUS[0]}', str(items), "--out", "/dev/stdout", *OPTIONS)
    assert (done.returncode, done.stdout) == (141, '{"deepinf')


def test_device_that_takes_nothing_is_an_error_of_the_output(items: Path) -> None:
    done = shell('"$@"', str(items), "--out", "/dev/full", *OPTIONS)
    assert done.returncode == 74
    assert "E_OUTPUT: cannot write /dev/full\n  reason: No space left on device\n" in done.stderr
