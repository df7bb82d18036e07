"""What the backend can do on each architecture (``spec/kernels.md`` 3.2).

The manifest claims the same, and a test holds the two together: ``claims`` is what holds everywhere, ``claims_on`` what
was measured on a device of one architecture. A test can only be run on a device, so a property of results (equal bits
whatever else is in the batch) is claimed where one ran.
"""

from __future__ import annotations

from deepinfer_core.types import Capabilities

FEATURES = frozenset({"graphs", "fp4_cache", "fp8_index_f32sf", "engram_host_storage", "deterministic_sampling"})
"""What the code can do, on every architecture that it is compiled for."""
MEASURED: dict[str, frozenset[str]] = {"sm_90": frozenset()}
"""Architecture -> features that hold by tests on such a device."""
_NOTES = {
    "sm_90": "operands of FP8 and FP4 are expanded to bf16, exactly, and multiplied as bf16",
    "sm_100": "compiled for this architecture and not executed on it; operands of FP8 and FP4 as on sm_90",
    "sm_103": "compiled for this architecture and not executed on it; operands of FP8 and FP4 as on sm_90",
}


def capabilities(arch: str, *, memory_bytes: int = 0, count: int = 1) -> Capabilities:
    """The record of one device of ``arch``."""
    features = FEATURES | MEASURED.get(arch, frozenset())
    activations, weights = ("bf16", "f32", "e4m3"), ("bf16", "f32", "e4m3", "e2m1")
    return Capabilities(
        name="cuda",
        device_type="cuda",
        arch=arch,
        count=count,
        memory_bytes=memory_bytes,
        dtypes=frozenset({"bf16", "f32"}),
        gemm_formats=frozenset(
            (a, w, "ue8m0" if "e4m3" in (a, w) or w == "e2m1" else "none") for a in activations for w in weights
        ),
        kv_formats=frozenset({"v41", "v41_fp4", "bf16", "f32"}),
        index_formats=frozenset({"index_fp4", "index_mxfp8", "index_fp8", "bf16", "f32"}),
        sf_word="f32",
        graph="graphs" in features,
        timing_events=True,
        features=features,
        determinism={
            "run_to_run": True,
            "batch_invariant": "batch_invariant" in features,
            "cross_backend_sampler": True,
        },
        notes=_NOTES[arch],
    )
