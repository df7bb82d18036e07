"""What is reported of a choice: log-probabilities and alternatives (``spec/sampling.md`` 1.2, 2.2 step 14).

With as many alternatives as tokens a sampler shows its whole processed distribution: kept sets are compared exactly.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.part import not_offered
from deepinfer_core.conformance.reference.sampling import distribution, ranking
from deepinfer_core.conformance.sampler.steps import random_logits, step_inputs

pytestmark = pytest.mark.level("core")
VOCAB = 24
TOLERANCE = 1e-4  # of a probability: 2.3 asks for 1e-7 + 1e-4 of the best one's


def close(got: float, probability: float, best: float) -> bool:
    return abs(math.exp(got) - probability) <= 1e-7 + TOLERANCE * best


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"temperature": 0.4},
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.05},
        {"top_p": 0.8, "top_k": 4, "min_p": 0.01},
    ],
    ids=lambda case: "-".join(f"{k}{v}" for k, v in case.items()) or "plain",
)
def test_log_probability_is_that_of_the_processed_distribution(bench: Any, case: Any) -> None:
    logits = random_logits(32, VOCAB, seed=1)
    out = bench(VOCAB).step(logits, step_inputs(32, seed=np.arange(32), **case))
    for row, (token, got) in enumerate(zip(out.tokens.tolist(), out.logprobs.tolist(), strict=True)):
        p = distribution(logits[row].tolist(), **case)
        require(p[token] > 0, "a filtered token was chosen", case=case, row=row, token=token)
        require(
            close(got, p[token], max(p)),
            "a log-probability is not that of the processed distribution",
            case=case,
            row=row,
            got=got,
            expected=math.log(p[token]),
        )


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"top_k": 5},
        {"top_p": 0.7},
        {"top_p": 0.35},
        {"min_p": 0.05},
        {"min_p": 0.3},
        {"temperature": 0.5, "top_p": 0.8, "top_k": 7, "min_p": 0.01},
    ],
    ids=lambda case: "-".join(f"{k}{v}" for k, v in case.items()) or "plain",
)
def test_alternatives_are_the_kept_tokens_from_the_best_on(bench: Any, case: Any) -> None:
    logits = random_logits(32, VOCAB, seed=2)
    inputs = step_inputs(32, seed=np.arange(32), max_top_logprobs=VOCAB, top_logprobs=[VOCAB] * 32, **case)
    out = bench(VOCAB).step(logits, inputs)
    if out.top_ids is None:
        not_offered("it reports no alternatives")
    require_equal(out.top_ids.shape, (32, VOCAB), "top_ids has a wrong shape")
    for row in range(32):
        values = logits[row].tolist()
        p = distribution(values, **case)
        edge = min((abs(before - case.get("top_p", 2.0)) for before in _before(values, case)), default=1.0)
        if edge < 1e-3:  # too near for double precision to say who is right
            continue
        want = [token for token in ranking(values) if p[token] > 0]
        got = [token for token in out.top_ids[row].tolist() if token >= 0]
        require_equal(got, want, "the kept tokens are not those of the reference", case=case, row=row)
        for token, logprob in zip(got, out.top_logprobs[row].tolist(), strict=False):
            require(
                close(logprob, p[token], max(p)), "an alternative has a wrong log-probability", row=row, token=token
            )


def _before(values: list[float], case: dict[str, float]) -> list[float]:
    """Mass before each token in rank order, of what min-p leaves."""
    p = distribution(values, **{name: case[name] for name in ("temperature", "min_p") if name in case})
    masses = [p[token] for token in ranking(values)]
    return [sum(masses[:i]) for i in range(len(masses))]


def test_requests_get_as_many_alternatives_as_they_ask_for(bench: Any) -> None:
    logits = random_logits(3, VOCAB, seed=3)
    inputs = step_inputs(3, max_top_logprobs=5, top_logprobs=[0, 2, 5])
    out = bench(VOCAB).step(logits, inputs)
    if out.top_ids is None:
        not_offered("it reports no alternatives")
    counts = (out.top_ids >= 0).sum(1).tolist()
    require_equal(counts, [0, 2, 5], "a request has another number of alternatives than it asked for")


def test_raw_log_probability_is_that_of_the_model(bench: Any) -> None:
    """Before any mask, bias, temperature or filter."""
    logits = random_logits(16, VOCAB, seed=4)
    given = {"temperature": 0.3, "top_k": 2, "bias": np.array([[0, 3]], np.int32), "bias_value": [4.0]}
    out = bench(VOCAB).step(logits, step_inputs(16, seed=np.arange(16), logprobs_raw=[1] * 16, **given))
    for row, (token, got) in enumerate(zip(out.tokens.tolist(), out.logprobs.tolist(), strict=True)):
        p = distribution(logits[row].tolist())
        require(
            close(got, p[token], max(p)),
            "a raw log-probability is not the model's",
            row=row,
            got=got,
            expected=p[token],
        )


def test_prompt_scores_are_those_of_the_model_and_do_not_depend_on_slices(bench: Any) -> None:
    made = bench(VOCAB)
    if not hasattr(made.sampler, "prompt_logprobs"):
        not_offered("it scores no prompts")
    logits = random_logits(20, VOCAB + 8, seed=5)
    tokens = np.random.default_rng(6).integers(0, VOCAB, 20).astype(np.int32)

    def score(part: slice) -> list[float]:
        from deepinfer_core.records import SamplerInputs

        targets = made.backend.bind_inputs(SamplerInputs(prompt_tokens=tokens[part])).prompt_tokens
        scored = made.sampler.prompt_logprobs(made.device(logits[part]), targets)
        values: list[float] = np.asarray(made.backend.to_host(scored)).tolist()
        return values

    whole = score(slice(0, 20))
    require_equal(score(slice(0, 7)) + score(slice(7, 8)) + score(slice(8, 20)), whole, "slices change a prompt score")
    for row, got in enumerate(whole):
        p = distribution(logits[row, :VOCAB].tolist())
        require(close(got, p[tokens[row]], max(p)), "a prompt score is not the model's", row=row, got=got)
