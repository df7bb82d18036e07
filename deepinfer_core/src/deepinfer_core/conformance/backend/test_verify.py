"""``meta.verify_lengths``: which drafts a step verifies, by the confidences of the step before (``engine.md`` 7.4)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from deepinfer_core.conformance.failures import require_equal
from deepinfer_core.conformance.reference import feed as reference

pytestmark = [pytest.mark.op("meta.verify_lengths"), pytest.mark.needs("op:meta.verify_lengths")]

CONFIDENCES: dict[str, list[list[float]]] = {
    "falling": [[0.9, 0.8, 0.7], [0.6, 0.5, 0.3], [0.99, 0.1, 0.9]],
    "all equal": [[1.0] * 3] * 4,
    "ties across rows": [[0.5, 0.5, 1.0], [0.25, 1.0, 1.0], [0.5, 0.5, 0.5], [0.5, 1.0, 0.5]],
    "none certain": [[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]],
    "no probabilities": [[math.nan, 0.9, 0.9], [1.5, 0.9, math.nan], [-0.5, 0.9, 0.9], [math.inf, 0.5, -math.inf]],
    "one": [[0.3, 0.9]],
    "no drafts": [[], [], []],
    "rounding": [[0.1, 0.3, 0.7, 0.9, 0.11]] * 2 + [[0.3, 0.1, 0.7, 0.9, 0.11], [0.7, 0.1, 0.3, 0.9, 0.11]],
}


def lengths(backend: Any, device: Any, confidence: list[list[float]], remap: list[int] | None, budget: int) -> Any:
    values = torch.tensor(confidence, dtype=torch.float32, device=device)
    rows = None if remap is None else torch.tensor(remap, dtype=torch.int32, device=device)
    got = backend.ops["meta.verify_lengths"](values, rows, budget)
    require_equal(got.dtype, torch.int32, "lengths are int32", op="meta.verify_lengths")
    return got


def as_fp32(confidence: list[list[float]]) -> list[list[float]]:
    out: list[list[float]] = torch.tensor(confidence, dtype=torch.float32).double().tolist()
    return out


@pytest.mark.level("smoke")
@pytest.mark.parametrize("name", CONFIDENCES)
def test_the_most_certain_drafts_are_verified_for_every_budget(
    backend: Any, device: Any, tolerance: Any, name: str
) -> None:
    confidence = CONFIDENCES[name]
    k, before = len(confidence[0]), len(confidence)
    remaps = [None, [before - 1 - i for i in range(before)], [-1] * before, [0, -1, before - 1], [before, 0, -1, 0]]
    for remap in remaps:
        n = before if remap is None else len(remap)
        for budget in range(n, n * (k + 1) + 1):
            got = lengths(backend, device, confidence, remap, budget)
            expected = reference.verify_lengths(as_fp32(confidence), remap, budget)
            tolerance("meta.verify_lengths")(
                got, torch.tensor(expected), case=f"{name}, remap {remap}, budget {budget}"
            )


@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(20))
def test_the_most_certain_drafts_of_random_steps_are_verified(
    backend: Any, device: Any, rng: Any, tolerance: Any, seed: int
) -> None:
    generator = rng(6900 + seed)
    before, k = int(torch.randint(1, 200, (1,), generator=generator)), 1 + seed % 6
    steps = (7, 1 << 20)[seed % 2]  # few distinct values: many ties
    confidence = (torch.randint(0, steps + 1, (before, k), generator=generator) / steps).tolist()
    remap = None if seed % 3 == 0 else torch.randint(-1, before, (before + 3,), generator=generator).tolist()
    n = before if remap is None else len(remap)
    for budget in torch.randint(n, n * (k + 1) + 1, (5,), generator=generator).tolist():
        got = lengths(backend, device, confidence, remap, budget)
        expected = reference.verify_lengths(as_fp32(confidence), remap, budget)
        tolerance("meta.verify_lengths")(got, torch.tensor(expected), case=f"{n} requests, budget {budget}")
