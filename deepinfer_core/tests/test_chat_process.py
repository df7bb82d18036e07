"""``deepinfer chat`` at a terminal: Ctrl-C ends the answer, Ctrl-D the chat; and in a pipe, where Ctrl-C ends both."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define, field
from chat_toys import save_chat_tokenizer

pytest.importorskip("deepseek_recipe", reason="pip install 'deepinfer-core[chat]' to test chat")

TIMEOUT_S = 60
COMMAND = (sys.executable, str(Path(__file__).with_name("toy_chat_command.py")))


@define
class Terminal:
    """A program on a pseudo-terminal, as a person sees it."""

    process: subprocess.Popen[bytes]
    fd: int
    seen: str = ""
    _read: int = field(default=0)

    def until(self, text: str) -> str:
        """Wait for ``text``; what came up to its end since the last call."""
        while (end := self.seen.find(text, self._read)) < 0:
            if not select.select([self.fd], [], [], TIMEOUT_S)[0]:
                raise AssertionError(f"{text!r} did not come; seen: {self.seen!r}")
            data = os.read(self.fd, 4096)
            self.seen += data.decode("utf-8", "replace")
        start, self._read = self._read, end + len(text)
        return self.seen[start : self._read]

    def interrupt_until(self, text: str) -> str:
        """Press Ctrl-C at the prompt until ``text`` comes: one that falls between the prompt and the wait for a key is
        seen by Python with the next key only."""
        for _ in range(TIMEOUT_S):
            self.process.send_signal(signal.SIGINT)
            if select.select([self.fd], [], [], 1)[0]:
                return self.until(text)
        raise AssertionError(f"{text!r} did not come; seen: {self.seen!r}")

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> int:
        """The exit status, once the program has closed the terminal."""
        try:
            while os.read(self.fd, 4096):
                continue
        except OSError:  # EIO: nobody has the other side any more
            return self.process.wait(TIMEOUT_S)
        return self.process.wait(TIMEOUT_S)


def start(folder: Path, answer: str, *arguments: str) -> Terminal:
    save_chat_tokenizer(folder)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "chat", "--no-thinking", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TOY_MODEL": str(folder), "TOY_ANSWER": answer, "TERM": "dumb"},
    )
    os.close(theirs)
    return Terminal(process, ours)


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Terminal]:
    """A model that never ends an answer by itself."""
    terminal = start(tmp_path, "so ", "--ignore-eos")
    yield terminal
    terminal.process.kill()
    terminal.process.wait()
    os.close(terminal.fd)


def test_ctrl_c_ends_the_answer_and_ctrl_d_the_chat(endless: Terminal) -> None:
    endless.until("> ")
    for turn in ("one", "two"):
        endless.type(f"{turn}\n")
        endless.until("so so so ")
        endless.process.send_signal(signal.SIGINT)
        endless.until("deepinfer: the answer was ended")
        endless.until("> ")
    endless.type("\x04")
    assert endless.end() == 0


def test_sigterm_ends_the_chat_and_not_the_answer_alone(endless: Terminal) -> None:
    endless.until("> ")
    endless.type("one\n")
    endless.until("so so so ")
    endless.process.send_signal(signal.SIGTERM)
    endless.until("deepinfer: terminated")
    assert endless.end() == 143


def test_sigterm_at_the_prompt_ends_the_chat(endless: Terminal) -> None:
    endless.until("> ")
    endless.process.send_signal(signal.SIGTERM)
    endless.type("\n")  # a signal between the prompt and the wait for a key is seen with the next key
    assert endless.end() == 143


def test_ctrl_c_at_the_prompt_clears_the_line(endless: Terminal) -> None:
    endless.until("> ")
    endless.interrupt_until("deepinfer: Ctrl-D or /exit ends the chat")
    endless.until("> ")
    endless.type("/exit\n")
    assert endless.end() == 0


def test_typed_turns_are_answered_and_reset(tmp_path: Path) -> None:
    terminal = start(tmp_path, "fine é")
    terminal.until("> ")
    terminal.type("hé\n")
    terminal.until("fine é")
    terminal.until("> ")
    terminal.type("/help\n")
    terminal.until("/reset begins a new conversation")
    terminal.until("> ")
    terminal.type("/reset\n")
    terminal.until("> ")
    terminal.type("again\n")
    terminal.until("fine é")
    terminal.until("> ")
    terminal.type("\x04")
    assert terminal.end() == 0
    os.close(terminal.fd)


def test_ctrl_c_in_a_pipe_ends_the_program(tmp_path: Path) -> None:
    save_chat_tokenizer(tmp_path)
    process = subprocess.Popen(
        [*COMMAND, "chat", "--no-thinking", "--ignore-eos"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TOY_MODEL": str(tmp_path), "TOY_ANSWER": "so "},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert process.stdout.read(9) == b"so so so "
    process.send_signal(signal.SIGINT)
    assert process.stderr.read().endswith(b"deepinfer: interrupted\n")
    assert process.wait(TIMEOUT_S) == 130
    process.stdin.close()
    process.stdout.close()
    process.stderr.close()


def test_reader_that_leaves_ends_the_chat_quietly(tmp_path: Path) -> None:
    save_chat_tokenizer(tmp_path)
    command = f"yes hi | {' '.join(COMMAND)} chat --no-thinking | head -1"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "TOY_MODEL": str(tmp_path), "TOY_ANSWER": "fine"},
    )
    assert done.stdout == b"fine\n"
    assert b"Traceback" not in done.stderr
