"""What importing and probing a plugin does to a process, seen from inside a fresh one. Runs in children only."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

MARK = "DEEPINFER_CONFORMANCE_MARK"
"""Environment variable by which what a child started is known, wherever it went."""
HEAVY = ("torch", "torch_npu", "tilelang", "triton", "jax", "tensorflow")
_DEVICE_FILES = ("/dev/nvidia-uvm", "/dev/nvidia", "/dev/davinci", "/dev/kfd", "/dev/dri/render")


def import_module(value: str) -> dict[str, Any]:
    """CPU time of importing the module of an entry point, beside that of what every plugin imports anyway."""
    before = time.process_time()
    for name in ("deepinfer_core.hookspecs", "deepinfer_core.interfaces", "deepinfer_core.types", "attrs", "stevedore"):
        importlib.import_module(name)
    middle = time.process_time()
    importlib.import_module(value.partition(":")[0].strip())
    return {"baseline": middle - before, "seconds": time.process_time() - middle, **_state()}


def probe_twice(group: str, name: str, value: str) -> dict[str, Any]:
    """Two answers of ``deepinfer_backend_probe`` in one process."""
    from deepinfer_core.plugins.probe_child import probe

    answers = [probe(group, name, value) for _ in range(2)]
    return {"answers": answers, **_state()}


def _state() -> dict[str, Any]:
    return {
        "heavy": [name for name in HEAVY if name in sys.modules],
        "initialised": _initialised(),
        "devices": _open_devices(),
        "processes": _started(),
        "threads": sorted(t.name for t in threading.enumerate() if t is not threading.current_thread()),
        "directory": os.getcwd(),
    }


def _initialised() -> list[str]:
    """Device runtimes of torch that have a context."""
    torch = sys.modules.get("torch")
    names = [name for name in ("cuda", "npu", "xpu") if torch is not None and hasattr(torch, name)]
    return [name for name in names if getattr(torch, name).is_initialized()]


def _open_devices() -> list[str]:
    """Device files of accelerators that this process holds open."""
    folder = Path("/proc/self/fd")
    found = set()
    for entry in folder.iterdir() if folder.is_dir() else ():
        try:
            target = os.readlink(entry)
        except OSError:  # the descriptor of the listing itself
            continue
        if target.startswith(_DEVICE_FILES):
            found.add(target)
    return sorted(found)


def _started() -> int:
    """Processes besides this one that carry the mark, or that are its children."""
    from deepinfer_core.conformance.process_state import children

    own = children()
    mark = f"{MARK}={os.environ.get(MARK, '')}".encode()
    count = 0
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) != os.getpid():
            try:
                count += int(entry.name) in own or mark in (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # ended meanwhile, or of another user
                continue
    return count
