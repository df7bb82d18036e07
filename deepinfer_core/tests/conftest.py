"""Fixtures shared by the tests of the engine half."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from deepinfer_core.text.tokenizer import Tokenizer

# Pytest runs in importlib mode, which adds no path: the helper modules of this folder are found here.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=[True, False], ids=["overlap", "no-overlap"])
def overlap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Two steps in flight, and one."""
    import engine_toys

    monkeypatch.setitem(engine_toys.SETTINGS, "overlap", request.param)
    return bool(request.param)


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The checkpoint that the model plugin ships."""
    return Path(str(files("deepinfer_v41").joinpath("checkpoints/v41-tiny")))


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer.load(checkpoint, json.loads((checkpoint / "config.json").read_text("utf-8")))
