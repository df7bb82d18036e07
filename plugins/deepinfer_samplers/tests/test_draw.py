"""The canonical integer draw (spec/sampling.md 2.5)."""

import numpy as np
import pytest
import samplers_oracle as oracle
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_samplers.draw import draw, targets, weights
from deepinfer_samplers.hashing import draw_keys

P = (0.1, 0.2, 0.3, 0.4)
WEIGHTS = [214748368, 429496736, 644245120, 858993472]
CASES = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (42, 1000, 0), (42, 1000, 1), (2**64 - 1, 131071, 0)]
TARGETS = [1896895559, 1836018514, 1216681745, 1599666572, 1524966511, 723608524]
TOKENS = [3, 3, 2, 3, 3, 2]


def bits(keys):
    return torch.tensor(np.array(keys, np.uint64).view(np.int64))


def test_weights_of_the_example_are_the_golden_weights():
    assert weights(torch.tensor([P])).tolist() == [WEIGHTS]


def test_draw_example_gives_the_golden_targets_and_tokens():
    keys = torch.cat([torch.from_numpy(draw_keys([s], [p], c).view(np.int64)) for s, p, c in CASES])
    totals = torch.full((len(CASES),), sum(WEIGHTS))
    assert targets(keys, totals).tolist() == TARGETS
    assert draw(torch.tensor([P]).repeat(len(CASES), 1), keys).tolist() == TOKENS


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_targets_any_key_and_total_equal_wide_integer_arithmetic(key, total):
    assert targets(bits([key]), torch.tensor([total])).tolist() == [oracle.target(key, total)]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(0, 2**64 - 1))
def test_draw_any_row_equals_the_plain_version(parts, key):
    if sum(parts) == 0:
        parts[0] = 1
    p = (torch.tensor([parts], dtype=torch.float64) / sum(parts)).to(torch.float32)
    exact = [int(np.floor(np.float64(value) * 2**31)) for value in p[0].tolist()]
    assert draw(p, bits([key])).tolist() == [oracle.draw(exact, key)]


@pytest.mark.parametrize("key", [0, 1, 2**63, 2**64 - 1])
def test_draw_extreme_keys_choose_a_token_with_weight(key):
    p = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]])
    expected = 3 if key >= 2**63 else 1
    assert draw(p, bits([key])).tolist() == [expected]


def test_draw_without_any_weight_takes_the_most_probable_lowest_id():
    tiny = 2.0**-40
    p = torch.tensor([[tiny, 2 * tiny, 2 * tiny, 0.0], [0.0, 0.0, 0.5, 0.5]])
    assert draw(p, bits([2**64 - 1, 0])).tolist() == [1, 2]


def test_draw_permuted_and_padded_rows_give_the_same_tokens():
    torch.manual_seed(3)
    p = torch.softmax(torch.randn(64, 33), -1)
    keys = torch.from_numpy(draw_keys(np.arange(64), np.arange(64) * 7).view(np.int64))
    whole = draw(p, keys)
    order = torch.randperm(64)
    padded = torch.cat([p[order], torch.zeros(5, 33)])
    padded_keys = torch.cat([keys[order], torch.zeros(5, dtype=torch.int64)])
    assert torch.equal(draw(padded, padded_keys)[:64], whole[order])
    assert torch.equal(torch.cat([draw(p[i : i + 1], keys[i : i + 1]) for i in range(64)]), whole)


def test_draw_wider_rows_with_empty_columns_give_the_same_tokens():
    torch.manual_seed(4)
    p = torch.softmax(torch.randn(32, 50), -1)
    keys = torch.from_numpy(draw_keys(np.arange(32), np.arange(32)).view(np.int64))
    for width in (51, 64, 1000):
        wide = torch.zeros(32, width)
        wide[:, :50] = p
        assert torch.equal(draw(wide, keys), draw(p, keys))
