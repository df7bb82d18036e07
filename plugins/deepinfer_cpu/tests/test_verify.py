"""``meta.verify_lengths`` against the scheduler's own distribution (``spec/engine.md`` 7.4, invariant 33)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deepinfer_core.errors import ShapeContractError
from deepinfer_cpu.ops.verify import verify_lengths
from deepinfer_cpu.sync_guard import NoSync
from deepinfer_native import verify as native


def confidences(rng: np.random.Generator, rows: int, k: int, kind: str) -> np.ndarray:
    if kind == "ties":
        return rng.choice(np.array([0, 0.5, 1], np.float32), (rows, k))
    if kind == "wild":
        return rng.choice(np.array([np.nan, -1, 0, 1e-30, 0.7, 1, 5, np.inf], np.float32), (rows, k))
    return rng.random((rows, k)).astype(np.float32)


@pytest.mark.parametrize("kind", ["plain", "ties", "wild"])
@pytest.mark.parametrize("seed", range(40))
def test_lengths_equal_those_of_the_scheduler(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    before, n, k = int(rng.integers(1, 12)), int(rng.integers(1, 12)), int(rng.integers(1, 6))
    confidence = confidences(rng, before, k, kind)
    remap = np.where(rng.random(n) < 0.7, rng.integers(0, before, n), -1).astype(np.int32)
    budget = int(rng.integers(n, n * (k + 1) + 1))
    known = np.where(remap[:, None] >= 0, confidence[remap], np.float32(0))
    got = verify_lengths(torch.from_numpy(confidence), torch.from_numpy(remap), budget)
    assert got.dtype == torch.int32
    assert got.tolist() == native.verify_lengths(native.cumulative(known), budget).tolist()


def test_without_a_row_map_rows_keep_their_numbers() -> None:
    confidence = torch.tensor([[0.9, 0.8], [0.1, 1.0], [0.95, 0.2]])
    assert verify_lengths(confidence, None, 6).tolist() == [3, 1, 2]
    assert verify_lengths(confidence, torch.tensor([0, 1, 2], dtype=torch.int32), 6).tolist() == [3, 1, 2]


def test_a_row_that_is_not_in_the_step_before_goes_last() -> None:
    confidence = torch.tensor([[0.0, 0.0]])
    remap = torch.tensor([-1, 0], dtype=torch.int32)
    assert verify_lengths(confidence, remap, 2).tolist() == [1, 1]
    assert verify_lengths(confidence + 0.5, remap, 4).tolist() == [1, 3]


@pytest.mark.parametrize("budget", [1, 7])
def test_a_budget_that_cannot_be_shared_is_refused(budget: int) -> None:
    with pytest.raises(ShapeContractError, match="budget"):
        verify_lengths(torch.ones(2, 2), None, budget)


def test_confidences_of_another_shape_are_refused() -> None:
    with pytest.raises(ShapeContractError, match="confidence"):
        verify_lengths(torch.ones(2), None, 2)


def test_nothing_is_read_on_the_host() -> None:
    with NoSync():
        got = verify_lengths(torch.tensor([[0.9, 0.1]]), torch.tensor([0, -1], dtype=torch.int32), 3)
    assert got.tolist() == [2, 1]
