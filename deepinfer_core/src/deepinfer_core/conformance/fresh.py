"""Run a function of the kit in a fresh process that has an empty working directory and home, and see what it leaves."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.conformance.observed import MARK
from deepinfer_core.plugins.child import run_children

_HOMES = (
    "HOME",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "USERPROFILE",
    "APPDATA",
    "TMPDIR",
    "TEMP",
    "TMP",
)


def run_fresh(
    target: str,
    arguments: Sequence[object],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    what: str,
    limit_s: float,
) -> dict[str, Any]:
    """The answer of ``target`` (``module:function``), run in an empty folder that is its home too.

    :param what: What it does, for messages: ``importing the plugin``.
    :raises ConformanceFailure: it crashed, took too long, wrote to standard output, left a file or a process, changed
        the working directory, or took hold of a device.
    """
    __tracebackhide__ = True
    work = folder / "work"
    work.mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(work)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        patch.setenv(MARK, uuid.uuid4().hex)
        for name in _HOMES:
            patch.setenv(name, str(work))
        [result] = run_children([(target, arguments)], limit_s, at_once=1)
    if result.failure:
        fail(f"{what}: the process {result.failure}", printed=result.printed or None)
    answer: dict[str, Any] = result.answer
    require_equal(result.stdout, "", f"{what} writes to standard output, which carries results only")
    left = sorted(path.relative_to(work).as_posix() for path in work.rglob("*"))
    require(not left, f"{what} leaves files in the working, home or temporary directory", got=left[:8])
    require_equal(answer["directory"], str(work.resolve()), f"{what} changes the working directory")
    require(not answer["processes"], f"{what} leaves processes behind", got=answer["processes"])
    require(not answer["threads"], f"{what} leaves threads behind", got=answer["threads"])
    require(not answer["initialised"], f"{what} initialises a device", got=answer["initialised"])
    require(not answer["devices"], f"{what} holds a device file open", got=answer["devices"])
    return answer
