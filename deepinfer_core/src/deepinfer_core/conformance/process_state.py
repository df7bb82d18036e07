"""What a process has beside its memory: settings of torch and of the interpreter, threads, files, processes."""

from __future__ import annotations

import os
import random
import threading
import zlib
from collections import Counter
from pathlib import Path
from typing import Any


def process_settings() -> dict[str, Any]:
    """Settings that any code of the process reads, as plain values."""
    import numpy as np
    import torch

    state: Any = np.random.get_state(legacy=True)
    return {
        "torch default dtype": torch.get_default_dtype(),
        "torch random state": zlib.crc32(torch.get_rng_state().numpy().tobytes()),
        "torch gradients": torch.is_grad_enabled(),
        "torch deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "numpy random state": zlib.crc32(repr((*state[2:], state[1].tolist())).encode()),
        "random state": hash(random.getstate()),
        "working directory": os.getcwd(),
        **{f"environment variable {name}": value for name, value in os.environ.items()},
    }


def changed_settings(before: dict[str, Any]) -> list[str]:
    """Names of the settings that differ by now; values stay out of what is published."""
    after = process_settings()
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def held() -> Counter[str]:
    """Threads, open files and child processes, counted by what they are. Files only where there is ``/proc``."""
    found = Counter(f"thread {type(thread).__name__}" for thread in threading.enumerate())
    for entry in _listed("/proc/self/fd"):
        try:
            target = os.readlink(entry)
        except OSError:  # the descriptor of the listing itself
            continue
        if not target.startswith(f"/proc/{os.getpid()}/"):
            found[f"file {target.partition(':')[0]}"] += 1
    found["child processes"] = len(children())
    return found


def children() -> list[int]:
    """Direct children of this process that have not ended."""
    mine = []
    for entry in _listed("/proc"):
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:  # ended meanwhile
                continue
            if int(after_name[1]) == os.getpid() and after_name[0] != "Z":
                mine.append(int(entry.name))
    return mine


def _listed(folder: str) -> list[Path]:
    path = Path(folder)
    return list(path.iterdir()) if path.is_dir() else []
