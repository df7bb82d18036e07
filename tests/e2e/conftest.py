"""Fixtures of the tests across distributions: the command, run in process, and copies of the shipped checkpoint."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import frozen

sys.path.insert(0, str(Path(__file__).parent))  # pytest runs in importlib mode, which adds no path

CHECKPOINT = "checkpoints/v41-tiny"


@frozen
class Result:
    """What a command left behind."""

    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture(scope="session")
def shipped() -> Path:
    """The checkpoint that deepinfer-v41 ships."""
    spec = importlib.util.find_spec("deepinfer_v41")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("deepinfer-v41 is not installed")
    return Path(spec.origin).parent / CHECKPOINT


@pytest.fixture
def model(shipped: Path, tmp_path: Path) -> Path:
    """A copy to damage. Files are links: a test replaces a file, it never writes into one."""
    path = tmp_path / "model"
    path.mkdir()
    for file in shipped.iterdir():
        os.symlink(file, path / file.name)
    return path


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs ``deepinfer ARGUMENTS`` in process."""
    from deepinfer_core.cli import main

    def call(*arguments: object) -> Result:
        capfd.readouterr()
        status = main([str(a) for a in arguments])
        out, err = capfd.readouterr()
        return Result(status, out, err)

    return call
