"""``meta.draft_inputs`` against the rule, one request at a time (``spec/model.md`` 2.11)."""

from __future__ import annotations

import pytest
import torch

from deepinfer_core.errors import ShapeContractError
from deepinfer_cpu.ops.draft import draft_inputs
from deepinfer_cpu.sync_guard import NoSync

SIZES = {"block": 3, "window": 4, "ring": 8, "noise": 99, "vocab_size": 100}


def i32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_rows_of_two_requests_by_hand() -> None:
    got = draft_inputs(i32([7, 8]), i32([1, 9]), i32([2, 5]), **SIZES)
    assert got["input_ids"].tolist() == [7, 99, 99, 8, 99, 99]
    assert got["positions"].tolist() == [2, 3, 4, 10, 11, 12]
    assert got["slot_draft"].tolist() == [6, 7, 8, 15, 16, 17]
    assert got["window_index"].tolist() == [[16, 17, -1, -1]] * 3 + [[46, 47, 40, 41]] * 3
    assert got["draft_index"].tolist() == [[6, 7, 8]] * 3 + [[15, 16, 17]] * 3
    assert {values.dtype for values in got.values()} == {torch.int32}


@pytest.mark.parametrize("last", range(14))
def test_window_is_that_of_the_last_known_position(last: int) -> None:
    got = draft_inputs(i32([1]), i32([last]), i32([3]), **SIZES)["window_index"]
    want = [24 + p % 8 for p in range(max(0, last - 3), last + 1)]
    assert got.tolist() == [want + [-1] * (4 - len(want))] * 3


def test_token_of_a_failed_request_is_noise() -> None:
    got = draft_inputs(torch.tensor([-1, 100, 5]), i32([1, 1, 1]), i32([1, 2, 3]), **SIZES)
    assert got["input_ids"].view(3, 3)[:, 0].tolist() == [99, 99, 5]


def test_nothing_is_read_on_the_host() -> None:
    with NoSync():
        draft_inputs(i32([7, 8]), i32([1, 9]), i32([2, 5]), **SIZES)


def test_wrong_count_is_named() -> None:
    with pytest.raises(ShapeContractError, match="draft_inputs"):
        draft_inputs(i32([7]), i32([1, 9]), i32([2, 5]), **SIZES)
