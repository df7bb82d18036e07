"""What the backend can do on each architecture (``spec/kernels.md`` 3.2)."""

from __future__ import annotations

from deepinfer_core.types import Capabilities

_FEATURES = {"fp4_cache", "fp8_index_f32sf", "engram_host_storage", "deterministic_sampling"}


def capabilities(arch: str, *, memory_bytes: int = 0, count: int = 1) -> Capabilities:
    """The record of one device of ``arch``."""
    return Capabilities(
        name="cuda",
        device_type="cuda",
        arch=arch,
        count=count,
        memory_bytes=memory_bytes,
        dtypes=frozenset({"bf16", "f32"}),
        gemm_formats=frozenset({("bf16", "bf16", "none"), ("bf16", "e4m3", "ue8m0"), ("bf16", "e2m1", "ue8m0")}),
        kv_formats=frozenset({"v41", "v41_fp4", "bf16", "f32"}),
        index_formats=frozenset({"index_fp4", "index_mxfp8", "index_fp8", "bf16", "f32"}),
        sf_word="f32",
        features=frozenset(_FEATURES),
        determinism={"run_to_run": True, "batch_invariant": False, "cross_backend_sampler": True},
        notes="" if arch == "sm_90" else "compiled for this architecture, not executed on it",
    )
