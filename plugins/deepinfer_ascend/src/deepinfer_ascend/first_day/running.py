"""One stage: its process, what came of it, and that it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from attrs import define, field

from deepinfer_ascend.first_day.stages import Stage

MOST_OUTPUT = 60_000
"""Characters of what a stage printed that the report keeps: its end."""


@define
class Result:
    """:ivar status: ``passed``, ``failed`` or ``timed out``. :ivar seconds: of the wall clock.
    :ivar output: what it printed, standard error after standard output. :ivar attached: the files that it wrote.
    :ivar rehearsed: what it did instead of what it does on a device; empty on one."""

    name: str
    what: str
    command: list[str]
    status: str
    exit_status: int | None
    seconds: float
    output: str
    attached: dict[str, Any] = field(factory=dict)
    rehearsed: str = ""


def run(stage: Stage) -> Result:
    """Run it to its end or its limit. A stage that cannot be started has failed, as any other."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            exit_status = _wait(stage, out, err)
            words = ""
        except OSError as exc:
            exit_status, words = 127, f"cannot be started: {exc}"
        text = "\n".join(filter(None, (_text(out), _text(err), words)))
    status = "timed out" if exit_status is None else "passed" if exit_status in stage.passing else "failed"
    attached = {name: _json(path) for name, path in stage.attached.items()}
    seconds = round(time.monotonic() - began, 1)
    return Result(
        stage.name, stage.what, [*stage.command], status, exit_status, seconds, text, attached, stage.rehearsed
    )


def _wait(stage: Stage, out: Any, err: Any) -> int | None:
    """Exit status; None: it was killed at its limit, with whatever it started."""
    process = subprocess.Popen(
        stage.command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env={**os.environ, **stage.environ},
        start_new_session=True,
    )  # fmt: skip
    try:
        return process.wait(stage.limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _text(stream: Any) -> str:
    stream.seek(0)
    whole: str = stream.read().decode("utf-8", "replace").strip()
    return (
        whole
        if len(whole) <= MOST_OUTPUT
        else f"... {len(whole) - MOST_OUTPUT:,} characters before\n{whole[-MOST_OUTPUT:]}"
    )


def _json(path: Path) -> Any:
    """What the file holds; None: it was not written, or not whole."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
