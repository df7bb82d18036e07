"""Step 5: ask backends what they find on this host, each in a child process with a time limit.

Children, because driver libraries may crash or exit, and a device that was initialised in the parent breaks ``fork``
(``spec/plugins.md`` 9).
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

from deepinfer_core.plugins.registry import PluginRecord
from deepinfer_core.types import ProbeReport

LIMIT_S = 5.0
MAX_ANSWER_BYTES = 64 << 10
_CHILD = (
    "import json, sys; fd, path, group, name, value = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from deepinfer_core.plugins.probe_child import main; main(fd, group, name, value)"
)


@frozen
class ProbeOutcome:
    """What a probe gave: a report, or why there is none."""

    record: PluginRecord
    report: ProbeReport | None = None
    failure: str = ""
    """``probe crashed: signal 11``; empty with a report."""
    crashed: bool = False
    """The probe itself went wrong, so an accelerator may well be present."""
    plugin_failed: bool = False
    """The plugin could not be imported or registered; says nothing about the host."""

    @property
    def device_present(self) -> bool:
        return self.crashed or (self.report is not None and self.report.present)


def probe_all(records: Sequence[PluginRecord], *, limit_s: float = LIMIT_S) -> list[ProbeOutcome]:
    """Probe every record, all at the same time. The answers are in the order of ``records``."""
    running: list[_Child] = []
    try:
        for record in records:
            running.append(_Child(record, limit_s))
        return [child.outcome() for child in running]
    finally:  # also on Ctrl-C, which a child in a session of its own does not see
        for child in running:
            child.close()


class _Child:
    """One child process and its pipe."""

    def __init__(self, record: PluginRecord, limit_s: float) -> None:
        self.record = record
        self.limit_s = limit_s
        self.deadline = time.monotonic() + limit_s
        # A file, not a pipe, so that a talkative driver never blocks. Closed by close().
        self.noise: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.read_fd, write_fd = os.pipe()
        entry = record.entry
        request = json.dumps([write_fd, sys.path, entry.group, entry.name, entry.value])
        self.process: subprocess.Popen[bytes] | None = None
        self.problem = ""
        try:
            self.process = subprocess.Popen(
                [sys.executable, *_interpreter_options(), "-c", _CHILD, request],
                stdin=subprocess.DEVNULL,
                stdout=self.noise,
                stderr=self.noise,
                pass_fds=(write_fd,),
                start_new_session=True,  # so that a hanging probe is killed with whatever it started
            )
        except OSError as exc:
            self.problem = f"probe could not be started: {exc.strerror or exc}"
        finally:
            os.close(write_fd)

    def outcome(self) -> ProbeOutcome:
        """Wait for the answer, the end of the child, or the deadline."""
        if self.process is None:
            return self._crash(self.problem)
        answer, timed_out = self._read()
        status = self._finish(self.process, timed_out or answer.endswith(b"\n"))
        return self._judge(answer, timed_out, status)

    def close(self) -> None:
        """End the child if it still runs, and close its files. Idempotent."""
        if self.process is not None and self.process.poll() is None:
            self._finish(self.process, may_kill=True)
        if not self.noise.closed:
            self.noise.close()
            os.close(self.read_fd)

    def _read(self) -> tuple[bytes, bool]:
        answer = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.read_fd, selectors.EVENT_READ)
            while not answer.endswith(b"\n") and len(answer) <= MAX_ANSWER_BYTES:
                left = self.deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return answer, True
                piece = os.read(self.read_fd, 1 << 16)
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

    def _judge(self, answer: bytes, timed_out: bool, status: int) -> ProbeOutcome:
        if timed_out:
            return self._crash(f"probe gave no answer within {self.limit_s:g} s")
        if not answer:
            if status < 0:
                return self._crash(f"probe crashed: signal {-status}")
            return self._crash(f"probe exited with status {status} and no result")
        try:
            return self._from_answer(json.loads(answer))
        except (ValueError, TypeError, KeyError, AttributeError):
            return self._crash("probe wrote something that is no result")

    def _from_answer(self, data: dict[str, Any]) -> ProbeOutcome:
        if "report" in data:
            return ProbeOutcome(self.record, report=_report(data["report"]))
        phase, error = str(data["phase"]), str(data["error"])
        if phase == "absent":
            return ProbeOutcome(self.record, failure=error)
        if phase == "return":
            text = f"deepinfer_backend_probe of {self.record.name} returned {error}, expected a ProbeReport"
            return ProbeOutcome(self.record, failure=text, crashed=True)
        text = f"{error} (raised at {data['blame']})"
        if phase == "probe":
            return ProbeOutcome(self.record, failure=f"probe failed: {text}", crashed=True)
        return ProbeOutcome(self.record, failure=f"plugin failed in {phase}: {text}", plugin_failed=True)

    def _crash(self, text: str) -> ProbeOutcome:
        last = self._last_line()
        return ProbeOutcome(self.record, failure=f"{text}; it printed: {last}" if last else text, crashed=True)

    def _last_line(self) -> str:
        self.noise.seek(0, os.SEEK_END)
        self.noise.seek(max(0, self.noise.tell() - 400))
        lines = self.noise.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _interpreter_options() -> list[str]:
    """Options that change meaning and are not inherited: optimisation, and an isolated environment."""
    options = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
    return options + (["-I"] if sys.flags.isolated else [])


def _report(raw: dict[str, Any]) -> ProbeReport:
    """The report from JSON, every type checked: it came from another process."""
    texts = {key: _tuple_of_text(raw[key]) for key in ("devices", "reasons")}
    for key, kind in (("present", bool), ("usable", bool), ("arch", str), ("driver", str), ("remedy", str)):
        if not isinstance(raw[key], kind):
            raise TypeError(key)
    if not isinstance(raw["score"], int):
        raise TypeError("score")
    return ProbeReport(
        present=raw["present"],
        usable=raw["usable"],
        devices=texts["devices"],
        arch=raw["arch"],
        driver=raw["driver"],
        score=raw["score"],
        reasons=texts["reasons"],
        remedy=raw["remedy"],
    )


def _tuple_of_text(raw: object) -> tuple[str, ...]:
    if not isinstance(raw, list) or not all(isinstance(item, str) for item in raw):
        raise TypeError("a list of texts")
    return tuple(raw)
