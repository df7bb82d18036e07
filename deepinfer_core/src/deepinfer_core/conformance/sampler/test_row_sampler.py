"""Row samplers: those that single requests name (``interfaces.RowSampler``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.conformance.reference.sampling import canonical_draw, key
from deepinfer_core.conformance.sampler.steps import random_logits
from deepinfer_core.interfaces import RowSampler

VOCAB = 33


def draw_of(number: int, width: int) -> Callable[[Any], int]:
    """The draw that the core gives a row sampler; fails the test where the core would end the request."""

    def draw(probabilities: Any) -> int:
        p = np.asarray(probabilities, dtype=np.float32)
        require_equal(p.shape, (width,), "a draw got probabilities of a wrong shape")
        total = float(p.sum(dtype=np.float64))
        if not (p >= 0).all() or not 0 < total <= 1.0 + 1e-4:
            fail("a draw got what is no distribution", got=f"sum {total}, least {p.min()}")
        return canonical_draw(p.tolist(), number)

    return draw


def draws(width: int, rows: int, seed: int = 5) -> list[Callable[[Any], int]]:
    return [draw_of(key(seed, position), width) for position in range(rows)]


def sample(sampler: RowSampler, logits: Any, numbers: Sequence[Callable[[Any], int]]) -> list[int]:
    """Sample and check the form of the answer."""
    rows = np.array(logits, dtype=np.float32)
    answer = sampler.sample(rows, numbers)
    require(hasattr(answer, "__len__"), "sample returned no sequence", got=type(answer).__name__)
    require_equal(len(answer), len(numbers), "sample returned another number of tokens than rows")
    tokens = [int(token) for token in answer]
    for row, token in enumerate(tokens):
        require(0 <= token < rows.shape[1], "a token is outside the vocabulary", row=row, got=token)
        require(np.asarray(logits)[row][token] != -np.inf, "a forbidden token was chosen", row=row, got=token)
    return tokens


@pytest.mark.level("smoke")
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_every_row_gets_a_token_of_the_vocabulary(row_sampler: Any, rows: Any) -> None:
    made = row_sampler(VOCAB)
    require(isinstance(made, RowSampler), "it is no RowSampler")
    sample(made, random_logits(rows, VOCAB, seed=rows), draws(VOCAB, rows))


@pytest.mark.level("core")
@pytest.mark.parametrize("vocab_size", [1, 2, 1000])
def test_any_vocabulary_is_sampled(row_sampler: Any, vocab_size: Any) -> None:
    sample(row_sampler(vocab_size), random_logits(3, vocab_size, seed=1), draws(vocab_size, 3))


@pytest.mark.level("core")
def test_same_rows_and_draws_give_the_same_tokens(row_sampler: Any) -> None:
    made, logits = row_sampler(VOCAB), random_logits(40, VOCAB, seed=2)
    first = sample(made, logits, draws(VOCAB, 40))
    require_equal(sample(made, logits, draws(VOCAB, 40)), first, "the same draws give other tokens")
    require_equal(sample(row_sampler(VOCAB), logits, draws(VOCAB, 40)), first, "a new one gives other tokens")


@pytest.mark.level("core")
def test_row_does_not_depend_on_the_rows_beside_it(row_sampler: Any) -> None:
    """Rows of a verification: each assumes that the drafts before it were accepted."""
    made, logits, numbers = row_sampler(VOCAB), random_logits(12, VOCAB, seed=3), draws(VOCAB, 12)
    together = sample(made, logits, numbers)
    alone = [sample(made, logits[i : i + 1], numbers[i : i + 1])[0] for i in range(12)]
    require_equal(alone, together, "a row alone gets another token than beside others")


@pytest.mark.level("core")
def test_requests_that_share_the_sampler_do_not_feel_each_other(row_sampler: Any) -> None:
    """One object serves every request of the same parameters."""
    made, logits = row_sampler(VOCAB), random_logits(20, VOCAB, seed=4)
    want = [sample(row_sampler(VOCAB), logits[i : i + 1], draws(VOCAB, 1, seed=i))[0] for i in range(20)]
    got = [sample(made, logits[i : i + 1], draws(VOCAB, 1, seed=i))[0] for i in range(20)]
    require_equal(got, want, "what it sampled before changes a token")


@pytest.mark.level("core")
def test_forbidden_tokens_are_never_chosen(row_sampler: Any) -> None:
    made = row_sampler(VOCAB)
    logits = random_logits(60, VOCAB, seed=6)
    rng = np.random.default_rng(7)
    for row in logits:
        row[rng.permutation(VOCAB)[: rng.integers(1, VOCAB)]] = -np.inf
    sample(made, logits, draws(VOCAB, 60))


@pytest.mark.level("core")
def test_only_token_that_is_allowed_is_chosen(row_sampler: Any) -> None:
    logits = np.full((VOCAB, VOCAB), -np.inf, np.float32)
    np.fill_diagonal(logits, np.linspace(-50.0, 50.0, VOCAB))
    got = sample(row_sampler(VOCAB), logits, draws(VOCAB, VOCAB))
    require_equal(got, list(range(VOCAB)), "the only allowed token was not chosen")


@pytest.mark.level("core")
def test_large_and_equal_logits_are_sampled(row_sampler: Any) -> None:
    rows = [[0.0] * 8, [-0.0] * 8, [1e30] * 8, [-1e30] * 8, [3e38, *[0.0] * 7], [-3e38, 3e38, *[0.0] * 6]]
    sample(row_sampler(8), np.array(rows, np.float32), draws(8, len(rows)))


@pytest.mark.level("core")
def test_logits_are_not_written(row_sampler: Any) -> None:
    """The core looks at them again when it checks the tokens."""
    logits = random_logits(4, VOCAB, seed=8)
    kept = logits.copy()
    row_sampler(VOCAB).sample(logits, draws(VOCAB, 4))
    require(np.array_equal(logits, kept), "sample changed the logits")


@pytest.mark.level("core")
def test_unknown_parameter_is_refused_with_its_name(row_sampler: Any, maker: Any) -> None:
    unknown = "no_such_parameter_of_any_sampler"
    try:
        row_sampler(VOCAB, {**maker.part.params, unknown: 1})
    except Exception as error:  # whatever it raises ends the request that brought the parameter
        require(unknown in str(error) + str(error.__cause__ or ""), "the error does not name the parameter", got=error)
        return
    fail("a parameter that it does not know was taken", remedy="raise ValueError for parameters that are not used")
