"""Tokens of a step that continues the one before: the op against loops."""

import random

import numpy as np
import pytest
import torch

from deepinfer_core.errors import ShapeContractError
from deepinfer_cpu.ops.feed import correct_lengths, feed_tokens

reference_pack = pytest.importorskip("deepinfer_native.reference_pack", reason="install deepinfer-native")

VOCAB = 40


def i32(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def table() -> np.ndarray:
    ids = (np.arange(VOCAB - 4, dtype=np.int32) * 5 + 1) % 17  # the last four ids have no entry
    ids[[3, 8]] = -1
    return ids


@pytest.mark.parametrize("lengths", ["fixed", "varying"])
@pytest.mark.parametrize("num_draft", [0, 1, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_tokens_and_windows_equal_the_plain_rules(seed: int, num_draft: int, lengths: str) -> None:
    draw = random.Random(f"{seed}-{num_draft}")
    n, m, q = draw.randrange(1, 7), draw.randrange(1, 7), num_draft + 1
    g = reference_pack.Geometry(ngram=draw.choice([2, 4]), ngram_table=table(), ngram_pad=2)
    remap = [draw.choice([-1, *range(m)]) for _ in range(n)]
    sampled = [draw.randrange(VOCAB) for _ in range(m)]
    drafts = [[draw.randrange(-1, VOCAB) for _ in range(num_draft)] for _ in range(m)]
    accepted = [draw.randrange(q) for _ in range(m)]
    fresh = [[draw.randrange(VOCAB) for _ in range(q)] for _ in range(n)]
    win = [[draw.randrange(-1, 17) for _ in range(num_draft + g.ngram - 1)] for _ in range(n)]
    counts = [q if lengths == "fixed" else draw.randrange(1, q + 1) for _ in range(n)]
    out = feed_tokens(
        i32(fresh), i32(counts), i32(remap), i32(sampled), sum(counts), vocab_size=VOCAB,
        drafts=i32(drafts).reshape(m, num_draft), accepted=i32(accepted), ngram_win=i32(win),
        ngram_table=torch.from_numpy(table()), ngram_pad=2,
    )  # fmt: skip
    ids, grams = [], []
    for i in range(n):
        row, rejected = fresh[i], num_draft
        if remap[i] >= 0:
            row = [sampled[remap[i]], *(VOCAB - 1 if d < 0 else d for d in drafts[remap[i]])]
            rejected -= accepted[remap[i]]
        ids += row[: counts[i]]
        grams += reference_pack.complete_window(win[i], row, rejected, g)[: counts[i]]
    assert out["input_ids"].tolist() == ids
    assert out["ngram_token_ids"].tolist() == grams
    assert {t.dtype for t in out.values()} == {torch.int32}


def test_without_a_map_every_request_continues_its_own_row() -> None:
    fresh = i32([[0], [0], [0]])
    out = feed_tokens(fresh, i32([1, 1, 1]), None, torch.tensor([7, 5, 6]), 3, vocab_size=VOCAB)
    assert out["input_ids"].tolist() == [7, 5, 6]
    assert list(out) == ["input_ids"]


@pytest.mark.parametrize("sampled", [[-5, VOCAB], [2**31 - 1, -(2**31)], []])
def test_row_of_a_failed_request_runs_with_a_valid_token(sampled: list[int]) -> None:
    out = feed_tokens(i32([[1, 2], [3, 4]]), i32([2, 2]), i32([1, 0]), i32(sampled), 4, vocab_size=VOCAB)
    assert out["input_ids"].tolist() == [VOCAB - 1] * 4


def test_missing_drafts_are_pad_drafts() -> None:
    out = feed_tokens(i32([[1, 2, 3], [0, 0, 0]]), i32([3, 3]), i32([-1, 0]), i32([9]), 6, vocab_size=VOCAB)
    assert out["input_ids"].tolist() == [1, 2, 3, 9, VOCAB - 1, VOCAB - 1]


def test_window_of_another_width_is_refused() -> None:
    with pytest.raises(ShapeContractError, match="ngram_win"):
        feed_tokens(
            i32([[1, 2, 3]]), i32([3]), None, i32([9]), 3, vocab_size=VOCAB, ngram_win=i32([[1]]),
            ngram_table=torch.from_numpy(table()),
        )  # fmt: skip


def test_lengths_move_back_by_what_was_rejected() -> None:
    start, q, accepted = i32([10, 20, 30, 40]), i32([4, 4, 4, 1]), i32([0, 3, 1])
    assert correct_lengths(start, q, i32([2, -1, 1, 0]), accepted, num_draft=3).tolist() == [12, 24, 34, 38]
    got = correct_lengths(start[:2], q[:2], None, accepted, num_draft=3)
    assert got.tolist() == [11, 24]
    assert got.dtype == torch.int32


def test_accepted_count_out_of_range_stays_inside_the_bounds() -> None:
    got = correct_lengths(i32([10, 20]), i32([3, 3]), i32([1, 0]), i32([-9, 99]), num_draft=2)
    assert got.tolist() == [13, 21]
    with pytest.raises(ShapeContractError, match="accepted"):
        correct_lengths(i32([10]), i32([3]), None, i32([]), num_draft=2)
