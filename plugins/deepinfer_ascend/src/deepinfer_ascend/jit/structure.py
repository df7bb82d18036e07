"""What a lowered source consists of: what the golden file of the tests holds, so that a change of it is seen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from deepinfer_ascend.jit.lowering import Lowered

KNOWN = frozenset(
    {
        "asc_init", "asc_sync_notify", "asc_sync_wait", "asc_sync_pipe", "asc_syncthreads", "asc_vf_call",
        "asc_copy_gm2ub_align", "asc_copy_ub2gm_align", "asc_copy_gm2l1_nd2nz", "asc_set_gm2l1_nz_para", "asc_fill_l1",
        "asc_copy_l0c2gm", "asc_set_l0c_copy_nz_para", "ascend_gemm_l1", "tl::AscendAllReduce",
    }
)  # fmt: skip
"""Calls of the device that a kernel here may make: those that the shim has, whose meaning is known."""
_CALL = re.compile(r"\b(asc_\w+|ascend_\w+|tl::Ascend\w+)\s*(?:<[^;{}]*?>)?(?:::run)?\s*\(")
_THREADS = re.compile(r"asc_vf_call<\w+>\(cce::dim3\((\d+)(?:, (\d+))?(?:, (\d+))?\)")
_UNTRACKED = ("asc_load_l2_cache_mode", "asc_store_l2_cache_mode")


def calls(kernel: Lowered) -> Counter[str]:
    """Calls of the device in the source, and how many of each."""
    return Counter(name for name in _CALL.findall(kernel.source) if name not in _UNTRACKED)


def unknown(kernel: Lowered) -> list[str]:
    """Calls whose meaning is not known here; none may be left."""
    return sorted(set(calls(kernel)) - KNOWN)


def structure(kernel: Lowered) -> Mapping[str, Any]:
    """Arguments, threads of each SIMT region, and calls, as JSON-serialisable data."""
    threads = []
    for found in _THREADS.findall(kernel.source):
        x, y, z = (int(n or 1) for n in found)
        threads.append(x * y * z)
    return {
        "arguments": [f"{a.ctype}{' *' if a.is_pointer else ''} {a.name}" for a in kernel.arguments],
        "threads": threads,
        "calls": dict(sorted(calls(kernel).items())),
    }
