"""Tokens that may not be chosen: grammar masks, tokens held back, -inf, columns beyond the vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.reference.sampling import distribution
from deepinfer_core.conformance.sampler.steps import masks, random_logits, step_inputs
from deepinfer_core.conformance.statistics import require_distribution

VOCAB = 70  # three words, the last one of six tokens


@pytest.mark.level("smoke")
def test_every_bit_of_a_mask_is_the_token_that_it_stands_for(bench: Any) -> None:
    """Request i may have token i only, and the one before is the best by far."""
    logits = np.zeros((VOCAB, VOCAB), np.float32)
    logits[np.arange(VOCAB), np.arange(VOCAB) - 1] = 50.0
    rows = {f"r{i}": [i] for i in range(VOCAB)}
    for temperature in (0.0, 1.0):
        out = bench(VOCAB).step(logits, step_inputs(VOCAB, temperature=temperature, **masks(VOCAB, VOCAB, **rows)))
        require_equal(out.tokens.tolist(), list(range(VOCAB)), "a masked token was chosen", temperature=temperature)


@pytest.mark.level("smoke")
def test_mask_holds_for_the_requests_that_are_listed_only(bench: Any) -> None:
    logits = random_logits(5, VOCAB, seed=1)
    given = masks(5, VOCAB, r1=[40, 65], r3=[2])
    out = bench(VOCAB).step(logits, step_inputs(5, temperature=0.0, **given))
    want = logits.argmax(1)
    want[1] = 40 if logits[1, 40] >= logits[1, 65] else 65
    want[3] = 2
    require_equal(out.tokens.tolist(), want.tolist(), "the mask of a request changed another one, or had no effect")


@pytest.mark.level("core")
def test_masked_tokens_are_never_drawn_and_the_others_keep_their_odds(bench: Any) -> None:
    vocab_size, n = 40, 256
    made = bench(vocab_size)
    row = np.linspace(2.0, -1.0, vocab_size).astype(np.float32)
    allowed = [1, 3, 31, 32, 33, 39]
    tokens: list[int] = []
    for first in range(0, 4096, n):
        given = masks(n, vocab_size, **{f"r{i}": allowed for i in range(n)})
        out = made.step(np.tile(row, (n, 1)), step_inputs(n, seed=np.arange(first, first + n), **given))
        tokens += out.tokens.tolist()
    masked = [float(value) if token in allowed else -np.inf for token, value in enumerate(row)]
    require_distribution(tokens, distribution(masked), "behind a mask")


@pytest.mark.level("core")
def test_held_back_tokens_are_not_chosen_in_their_row(bench: Any) -> None:
    """End tokens while min_tokens is not reached: (row, token) pairs."""
    logits = np.zeros((4, VOCAB), np.float32)
    logits[:, 5], logits[:, 64] = 9.0, 8.0
    pairs = np.array([[0, 5], [2, 5], [2, 64]], np.int32)
    out = bench(VOCAB).step(logits, step_inputs(4, temperature=0.0, eos_suppress=pairs))
    require_equal(out.tokens.tolist(), [64, 5, 0, 5], "a held-back token was chosen, or another row lost it")


@pytest.mark.level("core")
def test_tokens_of_minus_infinity_are_never_drawn(bench: Any) -> None:
    row = [0.0, -np.inf, 1.0, -np.inf, -np.inf, 0.5, -np.inf, -1.0]
    for temperature in (0.2, 1.0, 30.0):
        tokens = bench(8).draws(row, 1024, temperature=temperature)
        require_distribution(
            tokens, distribution(row, temperature=temperature), "with -inf in the row", temperature=temperature
        )


@pytest.mark.level("core")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_columns_beyond_the_vocabulary_are_padding(bench: Any, temperature: Any) -> None:
    """The head may be wider than the tokenizer: what lies there is no token, whatever its logit."""
    logits = random_logits(64, 37 + 11, seed=2)
    given = {"temperature": temperature, "seed": np.arange(64)}
    made = bench(37)
    bare = made.step(logits[:, :37], step_inputs(64, **given))
    for filler in (1e9, np.inf, np.nan, -np.inf):
        logits[:, 37:] = filler
        out = made.step(logits, step_inputs(64, **given))
        require_equal(out.tokens.tolist(), bare.tokens.tolist(), "padding columns changed a token", case=filler)
        require_equal(out.status.tolist(), bare.status.tolist(), "padding columns changed a status", case=filler)


@pytest.mark.level("core")
def test_single_allowed_token_is_certain(bench: Any) -> None:
    logits = random_logits(4, VOCAB, seed=6)
    given = masks(4, VOCAB, r0=[69], r1=[0], r2=[32], r3=[31])
    out = bench(VOCAB).step(logits, step_inputs(4, top_p=0.3, top_k=2, min_p=0.5, seed=np.arange(4), **given))
    require_equal(out.tokens.tolist(), [69, 0, 32, 31], "the only allowed token was not chosen")
    require((np.abs(out.logprobs) < 1e-6).all(), "its log-probability is not 0", got=out.logprobs.tolist())
