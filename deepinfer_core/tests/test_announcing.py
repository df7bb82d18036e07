"""What is said about an engine is said once in a command, and for each engine of a program."""

from __future__ import annotations

import pytest

from deepinfer_core import cli
from deepinfer_core.assembly.announcing import announce, each_line_once


def test_each_line_is_written_once_inside_and_always_outside(capsys: pytest.CaptureFixture[str]) -> None:
    announce("backend: toy")
    with each_line_once():
        for line in ("backend: toy", "W_KV_SHORT: little", "backend: toy", "W_KV_SHORT: little"):
            announce(line)
    announce("backend: toy")
    err = capsys.readouterr().err
    assert err == "backend: toy\nbackend: toy\nW_KV_SHORT: little\nbackend: toy\n"


def test_every_command_runs_inside(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(*_: object, **__: object) -> int:
        announce("backend: toy")
        announce("backend: toy")
        return 0

    monkeypatch.setattr("deepinfer_core.cli._run", twice)
    assert cli.main(["plugins"]) == cli.main(["plugins"]) == 0
    assert capsys.readouterr().err == "backend: toy\n" * 2
