"""Reports with made-up figures for the tests."""

from __future__ import annotations

from typing import Any

from deepinfer_bench.disturbances import Disturbances
from deepinfer_bench.point import Plan
from deepinfer_bench.report import report
from deepinfer_bench.segment import Segment
from deepinfer_bench.step_log import PHASES, Stamp

FACTS: dict[str, Any] = {
    "date": "2026-01-01T00:00:00+00:00",
    "machine": {"processor": "abacus", "cores": 2, "threads": 1, "load_1min": 0.1, "platform": "p", "python": "3",
                "device": "cpu"},
    "clock": {"name": "perf_counter", "implementation": "beads", "resolution_s": 1e-9, "monotonic": True,
              "kernel_source": None},
    "versions": {"deepinfer-core": "0.1"},
    "contracts": {"SchedulerOutputs": {"version": "1.0", "hash": "00"}},
    "plugins": [{"kind": "backend", "name": "cpu", "distribution": "deepinfer-cpu 0.1", "state": "loaded",
                 "used": "backend"}],
    "model": {"path": "m", "architecture": "Toy", "weights": "random", "vocab_size": 9, "max_model_len": 99,
              "cache_bytes": 1, "cache_tokens": 99, "graphs": "none"},
    "settings": {"backend": {"value": "cpu", "from": "flag"}},
}  # fmt: skip


def point(name: str = "b2-p40-k3", *, step_ms: int = 10) -> dict[str, Any]:
    """A point with four steps in each segment."""
    batch, prompt, drafts = (int(part[1:]) for part in name.split("-"))

    def segment(kind: str) -> dict[str, Any]:
        ends = [Stamp(i * step_ms * 1_000_000, kind, batch, 8, i * 3, (i * 1000,) * len(PHASES), 0) for i in range(5)]
        return Segment.of(kind, ends, Disturbances()).as_record()

    roofline = {"bytes": 1.0, "flop": 1.0, "floor_ms": 1.0, "floor_share": 0.1, "copy_share": 0.1, "matmul_share": 0.01,
                "of": "a step"}  # fmt: skip
    return {
        "name": name,
        "batch": batch,
        "prompt_tokens": prompt,
        "draft_tokens": drafts,
        "prefill": {**segment("prefill"), "round_ms": [40.0], "prompt_tokens_per_s": 800.0, "roofline": roofline},
        "decode": {
            **segment("decode"),
            "settling": {"steps": 16, "steady": True},
            "drift": 1.0,
            "context_tokens": 50,
            "tokens_per_s": 300.0 * batch,
            "tokens_per_s_whole_window": 290.0,
            "user_tokens_per_s": 300.0,
            "full_acceptance": {"tokens_per_s": 800.0, "assumption": "every draft is accepted", "formula": "f"},
            "acceptance": {"verified": [4], "accepted": [2], "by_place": [0.5], "accepted_share": 0.5,
                           "tokens_per_request_step": 1.5},
            "roofline": roofline,
        },
        "warm_up": {"rounds": 2, "steady": True},
        "arrivals": [{"request": 0, "at_step": 0, "prompt_tokens": prompt, "max_tokens": 9}],
        "prompts_sha256": "00",
        "collections": {"count": 0, "seconds": 0.0},
    }  # fmt: skip


def whole(*points: dict[str, Any], command: str = "decode") -> dict[str, Any]:
    ceilings = {"copy_bytes_per_s": 1e10, "matmul_flop_per_s": 1e11, "matmul_dtype": "float32"}
    return report(command, FACTS, Plan().as_record(), 0, "random token ids", ceilings, points)
