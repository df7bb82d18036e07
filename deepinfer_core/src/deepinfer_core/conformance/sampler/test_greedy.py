"""Requests below temperature 1e-5: the best token, the lowest id where several are (``spec/sampling.md`` 2.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import require_equal
from deepinfer_core.conformance.sampler.steps import random_logits, step_inputs

pytestmark = pytest.mark.level("smoke")
INF = float("inf")


@pytest.mark.parametrize("temperature", [0.0, 9e-6])
@pytest.mark.parametrize("vocab_size", [2, 31, 32, 33, 257])
def test_greedy_takes_the_best_token(bench: Any, vocab_size: Any, temperature: Any) -> None:
    logits = random_logits(17, vocab_size, seed=vocab_size)
    out = bench(vocab_size).step(logits, step_inputs(17, temperature=temperature))
    require_equal(out.tokens.tolist(), logits.argmax(1).tolist(), "a greedy token is not the best one")


@pytest.mark.parametrize(
    ("row", "best"),
    [
        ([1.0, 3.0, 3.0, 3.0], 1),
        ([5.0, 5.0, 5.0, 5.0], 0),
        ([-2.0, -0.0, 0.0, -0.0], 1),
        ([-INF, -INF, -7.0, -7.0], 2),
        ([-1e38, -3e38, -1e38, -INF], 0),
        ([3e38, 1.0, 3e38, 0.0], 0),
        ([0.0, 1e-45, 1e-45, 0.0], 1),
    ],
)
def test_greedy_takes_the_lowest_of_equal_tokens(bench: Any, row: Any, best: Any) -> None:
    out = bench(4).step([row], step_inputs(1, temperature=0.0))
    require_equal(out.tokens.tolist(), [best], "equal tokens: not the lowest id", case=row)


def test_greedy_lowest_of_equal_tokens_holds_over_a_wide_row(bench: Any) -> None:
    """Ties far apart: a reduction in parts must not prefer one part."""
    vocab_size = 5003
    logits = np.full((6, vocab_size), -1.0, np.float32)
    pairs = [(0, 5002), (31, 32), (1023, 1024), (2047, 4096), (4999, 5000), (1, 2)]
    for row, pair in zip(logits, pairs, strict=True):
        row[list(pair)] = 2.0
    out = bench(vocab_size).step(logits, step_inputs(6, temperature=0.0))
    require_equal(out.tokens.tolist(), [low for low, _ in pairs], "equal tokens: not the lowest id")


def test_greedy_does_not_look_at_filters_and_seeds(bench: Any) -> None:
    logits = random_logits(8, 33, seed=3)
    given = {"top_p": 0.1, "top_k": 3, "min_p": 0.9, "seed": np.arange(8), "sample_pos": np.arange(8)}
    out = bench(33).step(logits, step_inputs(8, temperature=0.0, **given))
    require_equal(out.tokens.tolist(), logits.argmax(1).tolist(), "a filter changed a greedy token")


def test_greedy_log_probability_is_that_of_a_certain_choice(bench: Any) -> None:
    """The processed distribution of a greedy request has all its mass on one token."""
    out = bench(33).step(random_logits(4, 33, seed=4), step_inputs(4, temperature=0.0))
    require_equal(out.logprobs.tolist(), [0.0] * 4, "the log-probability of a greedy token is not 0")


def test_greedy_and_random_requests_share_a_step(bench: Any) -> None:
    logits = random_logits(6, 33, seed=5)
    temperature = np.array([0.0, 1.0, 0.0, 0.5, 0.0, 2.0])
    out = bench(33).step(logits, step_inputs(6, temperature=temperature, seed=np.arange(6)))
    greedy = temperature == 0
    require_equal(out.tokens[greedy].tolist(), logits[greedy].argmax(1).tolist(), "a neighbour changed a greedy token")
