"""The venv with all fake distributions, made once for each process of the tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # pytest runs in importlib mode, which adds no path

from command_server import CommandServer
from crowd import make_crowd
from fake_venv import FakeVenv, missing_tools
from transcripts import Runner


@pytest.fixture(scope="session")
def crowd_venv(tmp_path_factory: pytest.TempPathFactory) -> FakeVenv:
    """The venv where everything is installed. Made in a second or two."""
    missing = missing_tools()
    if missing:
        pytest.skip(f"fake distributions are installed with {missing}, which is not here")
    return make_crowd(tmp_path_factory.mktemp("crowd"))


@pytest.fixture(scope="session")
def crowd(crowd_venv: FakeVenv) -> Iterator[Runner]:
    """Runs the commands of transcripts, in forks where that is possible."""
    server = CommandServer(crowd_venv)
    yield Runner(crowd_venv, server)
    server.close()
