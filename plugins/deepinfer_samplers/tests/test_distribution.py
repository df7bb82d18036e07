"""What is drawn over many seeds follows the processed distribution (spec/sampling.md 7.2)."""

import numpy as np
import pytest
import samplers_oracle as oracle
import torch
from samplers_step import logits_of, sample

N = 200_000
P = (0.31, 0.22, 0.16, 0.12, 0.08, 0.06, 0.04, 0.01)
CHI_SQUARE_999 = {2: 13.816, 3: 16.266, 7: 24.322}  # 99.9 % points by degrees of freedom

FILTERS = [
    {},
    {"temperature": 0.8},
    {"top_k": 3},
    {"top_p": 0.75},
    {"min_p": 0.35},
    {"top_p": 0.9, "top_k": 4, "temperature": 1.5},
]
STREAMS = [{"seed": np.arange(N)}, {"seed": 1234, "sample_pos": np.arange(N)}]


def counts_and_expected(filters, stream):
    row = logits_of(*P)
    ids = sample(torch.tensor([row]).expand(N, 8), **filters, **stream).sampled_ids
    values = {"temperature": 1.0, "min_p": 0.0, "top_p": 1.0, "top_k": -1, **filters}
    survivors = oracle.kept(row, **values)
    return np.bincount(ids, minlength=8), np.array(oracle.probabilities(row, values["temperature"], survivors))


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("stream", STREAMS, ids=["seeds", "positions"])
def test_draws_over_many_keys_follow_the_distribution(filters, stream):
    counts, expected = counts_and_expected(filters, stream)
    assert counts[expected == 0].sum() == 0
    assert np.abs(counts / N - expected).sum() / 2 < 0.01
    live = expected > 0
    chi_square = ((counts[live] - N * expected[live]) ** 2 / (N * expected[live])).sum()
    assert chi_square < CHI_SQUARE_999[int(live.sum()) - 1]


def test_chi_square_rejects_a_shifted_distribution():
    counts, expected = counts_and_expected({}, STREAMS[0])
    shifted = expected.copy()
    shifted[0] -= 0.01
    shifted[1] += 0.01
    chi_square = ((counts - N * shifted) ** 2 / (N * shifted)).sum()
    assert chi_square > CHI_SQUARE_999[7]
