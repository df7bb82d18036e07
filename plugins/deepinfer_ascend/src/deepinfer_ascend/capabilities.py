"""What the backend can do (``spec/kernels.md`` 3.2). The manifest claims the same; a test holds the two together."""

from __future__ import annotations

from collections.abc import Collection

from deepinfer_core.types import Capabilities

FEATURES = frozenset({"graphs", "fp4_cache", "deterministic_sampling"})
KERNEL_HEADS = 64
"""Query heads of the attention kernels. Fewer are padded to so many, more are taken in several calls."""
MAX_TOPK = 4096
EMULATED = "on the processor: vendor calls are served by equivalents, and nothing is said of a device"
NOTE = "written for this device and not executed on one"


def capabilities(
    *, memory_bytes: int = 0, count: int = 1, emulated: bool = False, plain: Collection[str] = ()
) -> Capabilities:
    """The record of one Ascend 950; ``emulated``: of the backend's code on the processor in its place, where the plain
    ops of ``cpu`` compute ``plain``."""
    left = f"; plain ops of cpu compute {', '.join(sorted(plain))}" if plain else ""
    unscaled = {(a, w, "none") for a in ("bf16", "f32") for w in ("bf16", "f32")}
    scaled = {(a, w, "ue8m0") for a in ("bf16", "f32", "e4m3") for w in ("e4m3", "e2m1")}
    return Capabilities(
        name="ascend",
        device_type="cpu" if emulated else "npu",
        arch="ascend950",
        count=count,
        memory_bytes=memory_bytes,
        dtypes=frozenset({"bf16", "f32"}),
        gemm_formats=frozenset(unscaled | scaled | {("e4m3", w, "ue8m0") for w in ("bf16", "f32")}),
        kv_formats=frozenset({"v41", "v41_fp4", "bf16", "f32"}),
        index_formats=frozenset({"index_fp4", "bf16", "f32"}),
        sf_word="i16x2",
        max_topk=MAX_TOPK,
        graph=True,
        timing_events=False,
        features=FEATURES,
        limits={"kernel_heads": KERNEL_HEADS},
        determinism={"run_to_run": True, "batch_invariant": False, "cross_backend_sampler": True},
        notes=f"{EMULATED}{left}" if emulated else NOTE,
        emulated=emulated,
    )
