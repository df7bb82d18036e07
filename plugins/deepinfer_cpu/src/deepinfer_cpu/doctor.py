"""What the cpu backend rests on: torch, the instructions it uses, and processors."""

from __future__ import annotations

import os

from deepinfer_core.types import DoctorCheck


def checks() -> list[DoctorCheck]:
    """Whether torch can be imported, what it computes with, and how many processors this process may use."""
    threads = DoctorCheck("threads", "ok", f"1 unless num_threads says otherwise; {_processors()} processors to use")
    try:
        import torch
    except (ImportError, OSError) as exc:  # OSError: a shared library of it is missing
        return [
            DoctorCheck(
                "torch",
                "problem",
                f"torch cannot be imported: {type(exc).__name__}: {exc}",
                reason="every op of this backend is computed with it",
                remedy="pip install --force-reinstall 'torch>=2.13,<2.15'",
            ),
            threads,
        ]
    vectors = torch.backends.cpu.get_cpu_capability()
    return [DoctorCheck("torch", "ok", f"{torch.__version__}, instructions {vectors}"), threads]


def _processors() -> int:
    """Processors that this process may run on, which a container may limit."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
