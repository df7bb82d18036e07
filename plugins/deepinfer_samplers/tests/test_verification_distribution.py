"""Speculation does not change the distribution: over many seeds the tokens follow q, whatever p (7.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from samplers_drafting import Block, drafting_sampler, first_tokens, inputs_of, propose
from samplers_step import logits_of
from scipy import stats

N = 100_000
Q = (0.31, 0.22, 0.16, 0.12, 0.08, 0.06, 0.04, 0.01)
BONUS = (0.05, 0.05, 0.1, 0.1, 0.1, 0.1, 0.2, 0.3)
DRAFTERS: dict[str, tuple[float, ...]] = {
    "equal": Q,
    "flat": (0.125,) * 8,
    "reversed": Q[::-1],
    "near": (0.30, 0.23, 0.15, 0.13, 0.08, 0.06, 0.04, 0.01),
    "one-hot": (0, 0, 0, 1, 0, 0, 0, 0),
}
CASES = [
    *((Q, p, mode) for p in DRAFTERS.values() for mode in ("rejection", "coupled")),
    ((0.5, 0.3, 0.2, 0, 0, 0, 0, 0), (0, 0, 0, 0.5, 0.25, 0.25, 0, 0), "rejection"),  # disjoint
    ((0.5, 0.3, 0.2, 0, 0, 0, 0, 0), (0, 0, 0, 0.5, 0.25, 0.25, 0, 0), "coupled"),
    ((0, 0, 1, 0, 0, 0, 0, 0), Q, "rejection"),
    ((0, 0, 1, 0, 0, 0, 0, 0), Q, "coupled"),
]


def rows(*distributions: Any) -> torch.Tensor:
    """Logits of N requests with these distributions in turn."""
    return torch.tensor([logits_of(*d) for d in distributions], dtype=torch.float32).repeat(N, 1)


def check(tokens: Any, expected: Any) -> None:
    """Chi-square and total variation; the seeds are fixed, so that this cannot fail by chance."""
    expected = np.asarray(expected)
    counts = np.bincount(tokens, minlength=8)
    live = expected > 0
    require(counts[~live].sum() == 0, "tokens without probability")
    distance = np.abs(counts / len(tokens) - expected).sum() / 2
    require(distance < 0.01 * (N / len(tokens)) ** 0.5, f"total variation {distance}")
    if live.sum() > 1:
        result = stats.chisquare(counts[live], expected[live] * len(tokens))
        require(result.pvalue > 1e-3, f"{result}")


def require(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def verified(q: Any, p: Any, mode: str, *, position: int = 5) -> tuple[Any, Any, Any]:
    sampler = drafting_sampler(8, 1, N, is_coupled=mode == "coupled")
    seeds = np.arange(N)
    drafts, _ = propose(sampler, Block(rows(p)[None]), N, seed=seeds, sample_pos=position - 1)
    inputs = inputs_of(N, 1, 2, seed=seeds, sample_pos=position)
    return drafts[:, 0], sampler.sample(rows(q, BONUS), inputs), inputs


@pytest.mark.parametrize(("q", "p", "mode"), CASES)
def test_tokens_follow_the_target_whatever_the_drafter(q: Any, p: Any, mode: str) -> None:
    drafts, out, inputs = verified(q, p, mode)
    check(drafts, p)
    check(first_tokens(out, inputs), q)
    took = out.accepted > 0
    overlap = float(np.minimum(q, p).sum())
    if mode == "rejection":
        assert abs(took.mean() - overlap) < 0.006
    else:  # never above what is possible, never below the bound of Gumbel coupling
        tv = 1 - overlap
        assert (1 - tv) / (1 + tv) - 0.006 < took.mean() < overlap + 0.006
    if took.sum() > 1000:
        check(out.sampled_ids[took], BONUS)
    assert np.array_equal(out.verified_ids[0::2][took], drafts[took])


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_tokens_follow_the_target_where_there_is_no_draft(mode: str) -> None:
    sampler = drafting_sampler(8, 1, 4, is_coupled=mode == "coupled")
    inputs = inputs_of(N, 1, 2, slots=np.zeros(N), seed=np.arange(N), sample_pos=3)
    out = sampler.sample(rows(Q, BONUS), inputs)
    assert out.accepted.sum() == 0
    assert (out.verified_ids == -1).all()
    assert out.verified_per_step.tolist() == [0]
    check(out.sampled_ids, Q)


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_tokens_follow_the_target_where_the_drafter_failed(mode: str) -> None:
    """A slot that holds no draft, and held the distribution of an earlier one, takes nothing from the target."""
    sampler = drafting_sampler(8, 1, N, is_coupled=mode == "coupled")
    seeds = np.arange(N)
    propose(sampler, Block(rows(Q)[None]), N, seed=seeds, sample_pos=3)
    broken = torch.full((1, N, 8), float("nan"))
    drafts, confidence = propose(sampler, Block(broken, broken[..., 0]), N, seed=seeds, sample_pos=4)
    assert (drafts == -1).all()
    assert (confidence == 0).all()
    out = sampler.sample(rows(Q, BONUS), inputs_of(N, 1, 2, seed=seeds, sample_pos=5))
    assert out.accepted.sum() == 0
    assert out.confidence_error == 0
    check(out.sampled_ids, Q)


def test_accept_noise_is_uniform_and_independent_of_the_draws() -> None:
    from deepinfer_samplers.hashing import FRESH, RESIDUAL, accept_keys, draw_keys, uniform

    seeds = np.arange(N)
    streams = [uniform(accept_keys(seeds, 9)), *(uniform(draw_keys(seeds, 9, c)) for c in (FRESH, RESIDUAL, 3, 4, 5))]
    for i, stream in enumerate(streams):
        assert stats.kstest(stream, "uniform").pvalue > 1e-3
        for other in streams[:i]:
            assert abs(np.corrcoef(stream, other)[0, 1]) < 0.015


def test_gumbel_noise_follows_its_distribution_and_is_finite() -> None:
    from deepinfer_samplers.filters import Distribution
    from deepinfer_samplers.gumbel import coupled, noise_keys

    flat = torch.full((N, 8), 0.125)
    distribution = Distribution(flat.log(), None, torch.zeros(N), flat)
    keys = torch.from_numpy(noise_keys(np.arange(N), np.full(N, 7)))
    check(coupled(distribution, keys), [0.125] * 8)


def test_total_variation_of_the_residual_constant_stays_below_its_bound() -> None:
    from deepinfer_samplers.verification import residual

    generator = torch.Generator().manual_seed(3)
    worst = 0.0
    for spread in (0.0, 1e-4, 1e-2, 1.0):
        base = torch.randn(500, 50, generator=generator)
        q = torch.softmax(base * 2, 1)
        p = torch.softmax(base * 2 + spread * torch.randn(500, 50, generator=generator), 1)
        rest, _ = residual(q, p)
        accept = torch.minimum(p.double(), q.double())
        produced = accept + (1 - accept.sum(1, keepdim=True)) * rest.double()
        worst = max(worst, float((produced - q.double()).abs().sum(1).max() / 2))
    assert worst < 5e-5


def test_distribution_test_rejects_tokens_that_take_every_draft() -> None:
    drafts, _, _ = verified(Q, DRAFTERS["flat"], "rejection")
    with pytest.raises(AssertionError):
        check(drafts, Q)
