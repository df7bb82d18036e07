"""The folder in which lowered sources and compiled kernels are kept, from one process to the next."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

VARIABLE = "DEEPINFER_ASCEND_CACHE"
"""Environment variable: the folder; without it one in the user's cache."""


def cache_folder() -> Path:
    """Where kernels are kept."""
    named = os.environ.get(VARIABLE)
    return (
        Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "deepinfer/ascend")
    )


def publish(target: Path, make: Callable[[Path], None]) -> None:
    """Have ``make`` write a file, which then appears as ``target``, whole. All who write it write the same."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scrap = target.with_suffix(f".{os.getpid()}{target.suffix}")
    make(scrap)
    scrap.replace(target)
