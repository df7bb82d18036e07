"""Run one function of ours in a child process, with a time limit, and get its JSON answer over a pipe of its own.

For whatever may crash, exit, hang or print: device drivers, and the code of plugins that nobody has to trust yet.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

from attrs import frozen

from deepinfer_core.plugins import tracing
from deepinfer_core.plugins.tracing import MARK

MAX_ANSWER_BYTES = 1 << 20
_CHILD = (
    "import json, sys; fd, path, target, arguments = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from deepinfer_core.plugins.child_side import main; main(fd, target, arguments)"
)


@frozen
class ChildResult:
    """What a child gave: an answer, or why there is none."""

    answer: Any = None
    failure: str = ""
    """``crashed: signal 11``; empty with an answer."""
    stdout: str = ""
    """Last line of what it wrote to standard output, which is no place for the code of a plugin to write to."""
    stderr: str = ""

    @property
    def printed(self) -> str:
        return self.stderr or self.stdout

    def told(self, subject: str) -> str:
        """The failure as a sentence: ``probe crashed: signal 11; it printed: libtoy: fatal``."""
        text = f"{subject} {self.failure}"
        return f"{text}; it printed: {self.printed}" if self.printed else text


def _scratch() -> IO[bytes]:
    """A file without a name; in memory where no folder takes one, as on a full disk."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        if not hasattr(os, "memfd_create"):  # Linux
            raise
        return os.fdopen(os.memfd_create("deepinfer-child"), "w+b")


class Child:
    """One child process, its pipe, and files for what it prints."""

    def __init__(self, target: str, arguments: Sequence[object], limit_s: float) -> None:
        """Start ``target`` (``module:function``) with JSON-serialisable arguments."""
        self.limit_s = limit_s
        self.deadline = time.monotonic() + limit_s
        # Files, not pipes, so that a talkative driver never blocks. Closed by close().
        self._out = _scratch()
        self._err = _scratch()
        self._read_fd, write_fd = os.pipe()
        request = json.dumps([write_fd, sys.path, target, list(arguments)])
        self.process: subprocess.Popen[bytes] | None = None
        self._problem = ""
        try:
            self.process = subprocess.Popen(
                [sys.executable, *_interpreter_options(), "-c", _CHILD, request],
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                pass_fds=(write_fd,),
                start_new_session=True,  # so that a hanging child is killed with whatever it started
            )
        except OSError as exc:
            self._problem = f"could not be started: {exc.strerror or exc}"
        finally:
            os.close(write_fd)

    def result(self) -> ChildResult:
        """Wait for the answer, the end of the child, or the deadline."""
        if self.process is None:
            return ChildResult(failure=self._problem)
        line, timed_out = self._read()
        status = self._finish(self.process, timed_out or line.endswith(b"\n"))
        answer, failure = self._judge(line, timed_out, status)
        _pass_on(self._err)
        return ChildResult(answer, failure, _last_line(self._out), _last_line(self._err))

    def close(self) -> None:
        """End the child if it still runs, and close its files. Idempotent."""
        if self.process is not None and self.process.poll() is None:
            self._finish(self.process, may_kill=True)
        if not self._out.closed:
            self._out.close()
            self._err.close()
            os.close(self._read_fd)

    def _read(self) -> tuple[bytes, bool]:
        answer = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._read_fd, selectors.EVENT_READ)
            while not answer.endswith(b"\n") and len(answer) <= MAX_ANSWER_BYTES:
                left = self.deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return answer, True
                piece = os.read(self._read_fd, 1 << 16)
                if not piece:
                    break
                answer += piece
        return answer, False

    def _finish(self, process: subprocess.Popen[bytes], may_kill: bool) -> int:
        """The exit status. A child that has answered, or is out of time, is not waited for."""
        if not may_kill:
            try:
                return process.wait(max(0.0, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    def _judge(self, line: bytes, timed_out: bool, status: int) -> tuple[Any, str]:
        if timed_out:
            return None, f"gave no answer within {self.limit_s:g} s"
        if not line:
            if status < 0:
                return None, f"crashed: signal {-status}"
            return None, f"exited with status {status} and no result"
        try:
            return json.loads(line), ""
        except ValueError:
            return None, "wrote something that is no result"


def run_children(calls: Sequence[tuple[str, Sequence[object]]], limit_s: float, at_once: int) -> list[ChildResult]:
    """Run every (target, arguments), ``at_once`` at the same time. The results are in the order of ``calls``."""
    results: list[ChildResult] = []
    for start in range(0, len(calls), at_once):
        running: list[Child] = []
        try:
            for target, arguments in calls[start : start + at_once]:
                running.append(Child(target, arguments, limit_s))
            results += [child.result() for child in running]
        finally:  # also on Ctrl-C, which a child in a session of its own does not see
            for child in running:
                child.close()
    return results


def _last_line(stream: IO[bytes]) -> str:
    stream.seek(0, os.SEEK_END)
    stream.seek(max(0, stream.tell() - 400))
    lines = stream.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip() and not line.startswith(MARK)), "")


def _pass_on(stream: IO[bytes]) -> None:
    """The lines of a child that are meant for this process's standard error: those of traced hooks."""
    stream.seek(0)
    for line in stream.read(MAX_ANSWER_BYTES).decode("utf-8", "replace").split("\n"):
        if line.startswith(MARK):
            tracing.write(line.removeprefix(MARK))


def _interpreter_options() -> list[str]:
    """Options that change meaning and are not inherited: optimisation, and an isolated environment."""
    options = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
    return options + (["-I"] if sys.flags.isolated else [])
