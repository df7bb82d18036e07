"""One quiet core to measure on, and what the figures depend on."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import resource
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def quiet(core: int | None = None) -> Iterator[None]:
    """Pinned to one core where the system can, garbage collection off."""
    pinned = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else set()
    if pinned:
        os.sched_setaffinity(0, {max(pinned) if core is None else core})
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        if pinned:
            os.sched_setaffinity(0, pinned)


def describe() -> dict[str, Any]:
    """Processor, load, versions and contract hashes."""
    from deepinfer_contracts._chains import CONTRACTS

    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "pinned": hasattr(os, "sched_setaffinity"),
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "native": version("deepinfer-native"),
        "contracts": {name: f"{c.layout_hash:016x}" for name, c in CONTRACTS.items()},
        "clock": "perf_counter_ns",
    }


def processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def rss_bytes() -> int:
    """Resident memory now; 0 where ``/proc`` does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


MALLINFO2 = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _MallInfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in MALLINFO2)


def heap_bytes() -> int | None:
    """Bytes in use on the C heap; None where the C library does not tell (``mallinfo2`` of glibc 2.33)."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    mallinfo2.restype = _MallInfo2
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


def switches() -> int:
    """How often the system took the core away from this thread so far; 0 where it does not say."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw if hasattr(resource, "RUSAGE_THREAD") else 0


def python_blocks() -> int:
    """Memory blocks that the interpreter has allocated."""
    return sys.getallocatedblocks()
