"""Faults of a backend apart from what its ops compute."""

from __future__ import annotations

from typing import Any

from mutant import Mutant


def _close_raises(arguments: dict[str, Any]) -> None:
    close = arguments["close"]

    def raising() -> None:
        close()
        raise RuntimeError("the device is gone")

    arguments["close"] = raising


MUTANTS = [
    Mutant(name="close_raises", change=_close_raises, caught_by="backend/test_life.py"),
]
