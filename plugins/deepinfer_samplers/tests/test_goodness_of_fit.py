"""Goodness of fit of the draws: chi-square over the tokens, Kolmogorov-Smirnov over the audit statistic.

Fixed seeds, 1e5 draws. A right sampler fails a test of level 1e-3 with some fixed seeds; these it passes, and
`test_tests_reject_a_wrong_distribution` shows that the tests would notice.
"""

import numpy as np
import pytest
import samplers_oracle as oracle
import torch
from samplers_step import logits_of, sampler_inputs

from deepinfer_samplers.canonical import CanonicalSampler
from deepinfer_samplers.rows import Preparation

stats = pytest.importorskip("scipy.stats")

N = 100_000
LEVEL = 1e-3
P = (0.27, 0.21, 0.02, 0.16, 0.12, 0.11, 0.08, 0.03)
FILTERS = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.8},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.3},
    {"temperature": 1.3, "min_p": 0.1, "top_p": 0.95, "top_k": 6},
]
STREAMS = {
    "seeds": {"seed": np.arange(N, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)},
    "positions": {"seed": 987, "sample_pos": np.arange(N)},
}


def draws(logits, filters, stream, **preparation):
    width = len(logits)
    sampler = CanonicalSampler(width, preparation=Preparation(width, **preparation), sum_smaller=True)
    return sampler.sample(torch.tensor([logits]).expand(N, width), sampler_inputs(N, **filters, **STREAMS[stream]))


def expected(logits, filters):
    values = {"temperature": 1.0, "min_p": 0.0, "top_p": 1.0, "top_k": -1, **filters}
    return np.array(oracle.probabilities(logits, values["temperature"], oracle.kept(logits, **values)))


def chi_square(ids, p):
    counts = np.bincount(ids, minlength=len(p))
    if counts[p == 0].any():
        raise AssertionError(f"tokens without probability were drawn: {np.flatnonzero(counts * (p == 0))}")
    live = p > 0
    return stats.chisquare(counts[live], N * p[live] / p.sum()).pvalue


def kolmogorov(out):
    """The statistic less a random share of the token's own mass is uniform (Rosenblatt 1952)."""
    inside = np.random.default_rng(11).random(N)
    own = np.exp(out.sampled_logprob.astype(np.float64))
    return stats.kstest(out.sum_smaller - inside * own, "uniform").pvalue


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("stream", STREAMS)
def test_draws_fit_the_processed_distribution(filters, stream):
    logits = logits_of(*P)
    out = draws(logits, filters, stream)
    assert chi_square(out.sampled_ids, expected(logits, filters)) > LEVEL
    assert kolmogorov(out) > LEVEL


@pytest.mark.parametrize("stream", STREAMS)
def test_draws_with_forbidden_tokens_fit_the_rest(stream):
    logits = logits_of(*P)
    masked = [-np.inf if token in (0, 4) else logit for token, logit in enumerate(logits)]
    out = draws(logits, {"temperature": 0.9}, stream, blacklist=(0, 4))
    assert chi_square(out.sampled_ids, expected(masked, {"temperature": 0.9})) > LEVEL
    assert kolmogorov(out) > LEVEL


@pytest.mark.parametrize("k", [1, 3, 7])
def test_draws_with_forced_top_k_fit_the_best_tokens(k):
    logits = logits_of(*P)
    out = draws(logits, {"top_p": 0.9}, "seeds", force_top_k=k)
    best = oracle.ranking(logits)[:k]
    cut = [logit if token in best else -np.inf for token, logit in enumerate(logits)]
    p = expected(cut, {"top_p": 0.9})
    if (p > 0).sum() > 1:
        assert chi_square(out.sampled_ids, p) > LEVEL
    assert set(np.unique(out.sampled_ids)) == set(np.flatnonzero(p))


def test_draws_of_a_wider_vocabulary_fit_over_its_blocks():
    """More tokens than are summed in one block."""
    logits = (torch.randn(300, generator=torch.Generator().manual_seed(2)) * 0.5).tolist()
    out = draws(logits, {}, "seeds")
    assert chi_square(out.sampled_ids, expected(logits, {})) > LEVEL
    assert kolmogorov(out) > LEVEL


def test_draws_of_neighbouring_keys_are_independent():
    """Tokens of successive positions, and of successive seeds, as pairs."""
    p = np.array(P)
    for stream in STREAMS:
        ids = draws(logits_of(*P), {}, stream).sampled_ids
        pairs = np.bincount(8 * ids[0::2] + ids[1::2], minlength=64)
        assert stats.chisquare(pairs, np.outer(p, p).reshape(-1) / p.sum() ** 2 * (N // 2)).pvalue > LEVEL


def test_tests_reject_a_wrong_distribution():
    out = draws(logits_of(*P), {}, "seeds")
    wrong = np.array(P)
    wrong[0] -= 0.01
    wrong[1] += 0.01
    assert chi_square(out.sampled_ids, wrong) < LEVEL
    out.sum_smaller = out.sum_smaller**1.05
    assert kolmogorov(out) < LEVEL
