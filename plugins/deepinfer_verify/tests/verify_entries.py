"""Entries of a file of baselines, made up."""

from __future__ import annotations

from typing import Any

from deepinfer_verify.ppl.records import Entry, SampleResult

HERE = "cpu-x86_64-intel-avx512-torch-2.13.0"
ELSEWHERE = "cpu-x86_64-amd-avx2-torch-2.13.0"


def sample(at: int = 0, logprobs: tuple[float, ...] = (-1.5, -0.25, -3.0), **changes: Any) -> SampleResult:
    drafts = {"verified": (3, 2), "accepted": (1, 0), **changes}
    return SampleResult.of(f"w-{at}", f"{at:064x}", logprobs, **drafts)


def entry(machine: str = HERE, *samples: SampleResult, name: str = "w", **changes: Any) -> Entry:
    torch = machine.partition("torch-")[2]
    values: dict[str, Any] = {
        "key": f"{machine}/{name}",
        "platform": {"backend": machine.partition("-")[0], "packages": {"torch": torch}},
        "workload": {"name": name, "in": 8, "arithmetic": "exact"},
        "model": "blake2b:00",
        "samples": samples or (sample(0), sample(1, (-0.5, -0.125))),
        "created": "2026-01-31",
    }
    return Entry(**{**values, **changes})
