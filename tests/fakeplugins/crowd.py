"""One venv with all fake distributions: what is wrong with one must not show in a command that needs another."""

from __future__ import annotations

import shutil
from pathlib import Path

from fake_venv import FakeVenv, build_wheels, cases

ROOT = Path(__file__).parent


def make_crowd(folder: Path) -> FakeVenv:
    """Build and install everything below ``tests/fakeplugins``, and do to it what a user may have done."""
    made = FakeVenv.create(folder / "venv")
    made.install(*build_wheels([case for case in cases(ROOT) if case.name != "vanished"], folder / "wheels"))
    # Installed in place, and then the folder went away.
    source = folder / "vanished"
    shutil.copytree(ROOT / "vanished", source)
    made.install("-e", str(source))
    shutil.rmtree(source)
    # Removed by hand: the metadata is left over.
    shutil.rmtree(made.site / "fake_leftover")
    return made
