"""A token depends on its own row, parameters, seed and position, and on nothing else (``spec/sampling.md`` 2.6)."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.sampler.steps import arrays_of, masks, random_logits, step_inputs
from deepinfer_core.conformance.statistics import chi_square, chi_square_limit, require_distribution

pytestmark = pytest.mark.level("core")
VOCAB = 50
N = 33


def parameters(n: int) -> dict[str, np.ndarray]:
    """Different for each request; some greedy."""
    i = np.arange(n)
    return {
        "temperature": np.where(i % 5 == 4, 0.0, 0.5 + 0.1 * (i % 7)),
        "top_p": np.where(i % 3 == 0, 0.8, 1.0),
        "top_k": np.where(i % 4 == 1, 6, -1),
        "min_p": np.where(i % 6 == 2, 0.02, 0.0),
        "seed": 1000 + 17 * i,
        "sample_pos": 3 + 5 * i,
    }


def at(columns: dict[str, np.ndarray], places: Any) -> dict[str, np.ndarray]:
    return {name: column[places] for name, column in columns.items()}


@pytest.mark.level("smoke")
def test_same_seed_and_position_give_the_same_token_again(bench: Any) -> None:
    made, logits, columns = bench(VOCAB), random_logits(N, VOCAB, seed=1), parameters(N)
    first = made.step(logits, step_inputs(N, **columns))
    for _ in range(3):
        again = made.step(logits, step_inputs(N, **columns))
        require_equal(again.tokens.tolist(), first.tokens.tolist(), "a repeated step gives other tokens")
    fresh = bench(VOCAB).step(logits, step_inputs(N, **columns))
    require_equal(fresh.tokens.tolist(), first.tokens.tolist(), "a new sampler gives other tokens for the same seeds")


def test_request_alone_gets_the_token_that_it_gets_in_a_batch(bench: Any) -> None:
    made, logits, columns = bench(VOCAB), random_logits(N, VOCAB, seed=2), parameters(N)
    batch = made.step(logits, step_inputs(N, **columns))
    for i in range(N):
        alone = made.step(logits[i : i + 1], step_inputs(1, **at(columns, slice(i, i + 1))))
        require_equal(alone.tokens.tolist(), [batch.tokens[i]], "alone and in a batch the token differs", request=i)
        require(
            math.isclose(alone.logprobs[0], batch.logprobs[i], abs_tol=1e-5),
            "alone and in a batch the log-probability differs",
            request=i,
        )


def test_order_of_requests_does_not_matter(bench: Any) -> None:
    made, logits, columns = bench(VOCAB), random_logits(N, VOCAB, seed=3), parameters(N)
    straight = made.step(logits, step_inputs(N, **columns)).tokens
    order = np.random.default_rng(4).permutation(N)
    mixed = made.step(logits[order], step_inputs(N, **at(columns, order), row_slot=order.astype(np.int32)))
    require_equal(mixed.tokens.tolist(), straight[order].tolist(), "another order of requests gives other tokens")


def test_neighbours_with_masks_and_filters_change_nothing(bench: Any) -> None:
    made, logits, columns = bench(VOCAB), random_logits(N, VOCAB, seed=5), parameters(N)
    plain = made.step(logits, step_inputs(N, **columns)).tokens
    others = {f"r{i}": [i % VOCAB, (7 * i + 1) % VOCAB] for i in range(1, N, 2)}
    given = {**columns, "top_k": np.where(np.arange(N) % 2, 3, columns["top_k"]), **masks(N, VOCAB, **others)}
    got = made.step(logits, step_inputs(N, **given)).tokens
    require_equal(got[::2].tolist(), plain[::2].tolist(), "the parameters of a neighbour changed a token")


def test_positions_have_draws_of_their_own(bench: Any) -> None:
    """With one seed, the tokens of 4096 positions follow the distribution, and neighbours are independent."""
    row = [0.0, 0.7, -0.4, 0.2]
    tokens = bench(4).draws(row, 4096, vary="sample_pos", seed=12345)
    p = np.exp(row) / np.exp(row).sum()
    require_distribution(tokens, p.tolist(), "along the positions of one request")
    pairs = [4 * a + b for a, b in itertools.pairwise(tokens)]
    counts = [pairs.count(i) for i in range(16)]
    statistic, cells = chi_square(counts, np.outer(p, p).reshape(-1).tolist())
    require(
        statistic <= chi_square_limit(cells - 1),
        "tokens at neighbouring positions depend on each other",
        statistic=statistic,
    )


def test_seeds_that_differ_in_one_bit_have_draws_of_their_own(bench: Any) -> None:
    made = bench(16)
    seeds = np.array([1 << bit for bit in range(64)], np.uint64)
    out = made.step(np.zeros((64, 16), np.float32), step_inputs(64, seed=seeds))
    require(len(set(out.tokens.tolist())) >= 12, "seeds of one bit hardly change the token", got=out.tokens.tolist())
    many = made.draws([0.0] * 16, 4096)
    require_distribution(many, [1 / 16] * 16, "over consecutive seeds")


def test_step_does_not_write_its_inputs(bench: Any) -> None:
    made, logits = bench(VOCAB), random_logits(N, VOCAB, seed=6)
    given = {
        **masks(N, VOCAB, r3=[1, 2, 3]),
        "bias": np.array([[0, 1], [5, 2]], np.int32),
        "bias_value": [1.0, -1.0],
        "eos_suppress": np.array([[1, 0]], np.int32),
    }
    inputs = step_inputs(N, **parameters(N), **given)
    before = {name: array.copy() for name, array in arrays_of(inputs)}
    rows = made.device(logits)
    kept = np.array(made.backend.to_host(rows), copy=True)
    bound = inputs if getattr(made.sampler, "host_inputs", False) else made.backend.bind_inputs(inputs)
    made.sampler.sample(rows, bound)
    require(np.array_equal(np.asarray(made.backend.to_host(rows)), kept), "the sampler changed the logits")
    for name, array in arrays_of(inputs):
        require(np.array_equal(array, before[name]), f"the sampler changed {name} of its inputs")


def test_result_of_a_step_outlives_the_next_one(bench: Any) -> None:
    """Results are fetched when the step is committed, which may be after the next one was sampled."""
    made = bench(VOCAB)
    first = made.step(random_logits(N, VOCAB, seed=7), step_inputs(N, **parameters(N)))
    tokens = first.tokens.tolist()
    made.step(random_logits(N, VOCAB, seed=8), step_inputs(N, **parameters(N)))
    later = made.read(first.output, N)
    require_equal(later.tokens.tolist(), tokens, "the next step changed the result of the one before")
