"""What a lowered source consists of: what the golden file of the tests holds, so that a change of it is seen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from deepinfer_ascend.chip import L0A_BYTES, L0B_BYTES, L0C_BYTES, L1_BYTES, UB_BYTES, UB_BYTES_SIMT
from deepinfer_ascend.jit.lowering import Lowered

ROOM = {"UB": UB_BYTES, "L1": L1_BYTES, "L0A": L0A_BYTES, "L0B": L0B_BYTES, "L0C": L0C_BYTES}
"""Bytes of each on-chip memory of a core."""

KNOWN = frozenset(
    {
        "asc_init", "asc_sync_notify", "asc_sync_wait", "asc_sync_pipe", "asc_syncthreads", "asc_vf_call",
        "asc_copy_gm2ub_align", "asc_copy_ub2gm_align", "asc_copy_gm2l1_nd2nz", "asc_set_gm2l1_nz_para", "asc_fill_l1",
        "asc_copy_l0c2gm", "asc_set_l0c_copy_nz_para", "ascend_gemm_l1", "tl::AscendAllReduce",
    }
)  # fmt: skip
"""Calls of the device that a kernel here may make: those that the shim has, whose meaning is known."""
OF_THE_LANGUAGE = frozenset(
    {"expf", "logf", "rsqrtf", "sqrtf", "abs", "fabsf", "min", "max", "make_float2", "make_int2"}
)
"""Functions of numbers that the headers of the device give, for one thread."""
_WORD = re.compile(r"(?<![\w:])([a-z]\w*)\s*\(")
_KEYWORDS = frozenset({"if", "for", "while", "return", "sizeof", "float", "void", "static_cast"})
_SYNC = re.compile(r"asc_sync_(notify|wait)\((PIPE_\w+), (PIPE_\w+)")
_CALL = re.compile(r"\b(asc_\w+|ascend_\w+|tl::Ascend\w+)\s*(?:<[^;{}]*?>)?(?:::run)?\s*\(")
_THREADS = re.compile(r"asc_vf_call<\w+>\(cce::dim3\((\d+)(?:, (\d+))?(?:, (\d+))?\)")
_UNTRACKED = ("asc_load_l2_cache_mode", "asc_store_l2_cache_mode")


def calls(kernel: Lowered) -> Counter[str]:
    """Calls of the device in the source, and how many of each."""
    return Counter(name for name in _CALL.findall(kernel.source) if name not in _UNTRACKED)


def unknown(kernel: Lowered) -> list[str]:
    """Calls whose meaning is not known here; none may be left."""
    own = set(re.findall(r"\bvoid (\w+)\(", kernel.source))
    words = {
        word
        for word in _WORD.findall(kernel.source)
        if not word.startswith(("asc_", "ascend_", "__")) and not word.endswith("_t") and word not in _KEYWORDS | own
    }
    return sorted((set(calls(kernel)) - KNOWN) | (words - OF_THE_LANGUAGE))


def pipes(kernel: Lowered) -> Mapping[str, list[int]]:
    """``MTE2 -> V``: how often the source notifies, and how often it waits."""
    found: dict[str, list[int]] = {}
    for what, source, target in _SYNC.findall(kernel.source):
        pair = f"{source.removeprefix('PIPE_')} -> {target.removeprefix('PIPE_')}"
        found.setdefault(pair, [0, 0])[what == "wait"] += 1
    return dict(sorted(found.items()))


def too_large(kernel: Lowered) -> list[str]:
    """Memories that its buffers do not fit in; a region of threads leaves them less of the first."""
    room = ROOM if "asc_vf_call" not in kernel.source else ROOM | {"UB": UB_BYTES_SIMT}
    return [f"{n} bytes of {name}, which has {room[name]}" for name, n in kernel.memory if n > room[name]]


def structure(kernel: Lowered) -> Mapping[str, Any]:
    """Arguments, threads of each SIMT region, and calls, as JSON-serialisable data."""
    threads = []
    for found in _THREADS.findall(kernel.source):
        x, y, z = (int(n or 1) for n in found)
        threads.append(x * y * z)
    return {
        "arguments": [f"{a.ctype}{' *' if a.is_pointer else ''} {a.name}" for a in kernel.arguments],
        "threads": threads,
        "memory": dict(kernel.memory),
        "pipes": pipes(kernel),
        "calls": dict(sorted(calls(kernel).items())),
    }
