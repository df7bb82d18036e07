"""``deepinfer generate`` as a process: pipes that close early and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from engine_toys import save_tokenizer

PROMPTS = 3000
NOTICE = "deepinfer: finishing the step; press Ctrl-C again to stop now"


def toy(tmp_path: Path, arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The toy command with ``arguments``, which may have redirections, run by a shell in ``tmp_path``."""
    save_tokenizer(tmp_path)
    command = f"{sys.executable} {Path(__file__).with_name('toy_command.py')} generate {arguments}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        env={**os.environ, "TOY_MODEL": str(tmp_path), "DEEPINFER_SEED": "1", **environment},
    )


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
        env={**os.environ, "TOY_MODEL": str(tmp_path), "DEEPINFER_SEED": "1"},
    )


def test_reader_that_leaves_early_ends_the_run_quietly(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["index"] == 0
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(60) == 141
    assert err == b"backend: toy (test)\n"


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [(signal.SIGINT, 130, "deepinfer: interrupted"), (signal.SIGTERM, 143, "deepinfer: terminated")],
)
def test_interrupt_leaves_whole_lines_and_a_status(
    process: subprocess.Popen[bytes], sent: signal.Signals, status: int, said: str
) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    first = process.stdout.readline()
    process.send_signal(sent)
    rest = process.stdout.read()
    err = process.stderr.read()
    rows = [json.loads(line) for line in (first + rest).splitlines()]
    assert process.wait(60) == status
    lines = err.decode().splitlines()
    assert lines[0] == "backend: toy (test)"
    assert lines[1:] in ([said], [NOTICE, said])
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
        env={**os.environ, "TOY_MODEL": str(tmp_path), "DEEPINFER_SEED": "1"},
    ) as asked:
        assert asked.stdin is not None
        assert asked.stdout is not None
        for prompt in ("one", "two", "three"):
            asked.stdin.write(prompt.encode() + b"\n")
            asked.stdin.flush()
            assert json.loads(asked.stdout.readline())["prompt"] == prompt
        asked.stdin.close()
        assert asked.wait(60) == 0


def test_further_interrupts_leave_no_traceback(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    reader = threading.Thread(target=process.stdout.read)  # a full pipe would hold the process up
    reader.start()
    process.send_signal(signal.SIGINT)
    err = b""
    while line := process.stderr.readline():
        err += line
        if b"interrupted" in line:
            for _ in range(20):
                process.send_signal(signal.SIGINT)
    reader.join(60)
    assert process.wait(60) == 130
    assert err.endswith(b"deepinfer: interrupted\n")


@pytest.mark.parametrize(
    "arguments",
    [
        "- --out in.txt < in.txt",
        "- --out link < in.txt",
        "--prompts-file /dev/stdin --out in.txt < in.txt",
        "- < in.txt >> in.txt",
        "--prompts-file link >> in.txt",
    ],
)
def test_results_never_go_to_the_file_that_the_prompts_come_from(tmp_path: Path, arguments: str) -> None:
    (tmp_path / "in.txt").write_bytes(b"import os\n")
    os.link(tmp_path / "in.txt", tmp_path / "link")
    done = toy(tmp_path, arguments)
    assert done.returncode == 2
    assert b"is the prompts file" in done.stderr
    assert (tmp_path / "in.txt").read_bytes() == b"import os\n"


def test_out_to_standard_output_keeps_what_a_shell_appends_to(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"old\n")
    assert toy(tmp_path, "a --max-tokens 2 --out /dev/stdout >> log").returncode == 0
    old, new = (tmp_path / "log").read_bytes().splitlines()
    assert (old, json.loads(new)["prompt"]) == (b"old", "a")


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        ("a >&-", 0, b""),
        ("a --stream >&-", 0, b""),
        ("- <&-", 0, b""),
        ("a > /dev/full", 74, b"deepinfer: E_OUTPUT: cannot write standard output\n"),
        ("a 1< /dev/null", 74, b"deepinfer: E_OUTPUT: cannot write standard output\n"),
        ("- 0> file", 2, b"deepinfer: E_INPUT: cannot read standard input\n"),
    ],
)
def test_closed_and_full_standard_streams(tmp_path: Path, arguments: str, status: int, error: bytes) -> None:
    done = toy(tmp_path, f"--max-tokens 2 {arguments}")
    assert done.returncode == status
    assert done.stderr.removeprefix(b"backend: toy (test)\n").startswith(error)
    assert b"E_INTERNAL" not in done.stderr


@pytest.mark.parametrize("redirection", ["2>&-", "2> /dev/full"])
def test_standard_error_that_takes_nothing_costs_no_result(tmp_path: Path, redirection: str) -> None:
    done = toy(tmp_path, f"a '' --json --max-tokens 2 {redirection}")
    assert done.returncode == 1
    assert [json.loads(line)["prompt"] for line in done.stdout.splitlines()] == ["a", ""]


def test_arguments_are_utf8_in_any_locale(tmp_path: Path) -> None:
    done = toy(tmp_path, "'é' $'\\xff' --stop 'ü' --json --max-tokens 2", LC_ALL="C", PYTHONUTF8="0")
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["prompt"], first["finish_reason"]) == ("é", "length")
    assert second["error"]["code"] == "E_PROMPT"


def test_interrupt_that_compiled_code_turns_into_an_error_is_an_interrupt(tmp_path: Path) -> None:
    done = toy(tmp_path, "a", TOY_SWALLOWS_INTERRUPT="for another")
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"deepinfer: interrupted\n")


def test_interrupt_that_compiled_code_loses_ends_the_command_all_the_same(tmp_path: Path) -> None:
    done = toy(tmp_path, "a", TOY_SWALLOWS_INTERRUPT="wholly")
    assert (done.returncode, done.stdout) == (130, b"")
    assert done.stderr == b"backend: toy (test)\ndeepinfer: interrupted\n"
