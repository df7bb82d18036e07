"""What a sampler has, and that one step of it works (``interfaces.Sampler``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.sampler.steps import MAX_ROWS, masks, random_logits, step_inputs
from deepinfer_core.interfaces import DraftingSampler, PromptScorer, Sampler, StaticSampler
from deepinfer_core.records import RowStatus

pytestmark = [pytest.mark.level("smoke"), pytest.mark.hook("deepinfer_sampler_create")]


@pytest.mark.parametrize("vocab_size", [2, 33, 1000])
def test_sampler_of_any_vocabulary_samples_a_step(bench: Any, vocab_size: Any) -> None:
    made = bench(vocab_size)
    require(isinstance(made.sampler, Sampler), "it has no method sample")
    out = made.step(random_logits(3, vocab_size, seed=1), step_inputs(3, seed=np.arange(3)))
    require((out.status == RowStatus.OK).all(), "a plain row is not OK", got=out.status.tolist())


def test_step_of_one_request_and_of_many_gives_a_token_each(bench: Any) -> None:
    made = bench(40)
    for n in (1, 2, MAX_ROWS):
        out = made.step(random_logits(n, 40, seed=n), step_inputs(n, temperature=0.0))
        require_equal(len(out.tokens), n, "a step has the wrong number of tokens")


def test_optional_members_are_what_the_protocol_says(bench: Any) -> None:
    sampler = bench(40).sampler
    flag = getattr(sampler, "host_inputs", False)
    require(isinstance(flag, bool), "host_inputs is no bool", got=flag)
    if hasattr(sampler, "sequence_bytes"):
        size = sampler.sequence_bytes
        require(isinstance(size, int) and size >= 0, "sequence_bytes is no number of bytes", got=size)
        require(callable(getattr(sampler, "reserve", None)), "a sampler with sequence_bytes has no method reserve")
    for name in ("sample_with", "check_params", "reserve"):
        require(callable(getattr(sampler, name, min)), f"{name} is no method")


def test_a_static_step_gives_what_sampling_gives(bench: Any) -> None:
    """A sampler that may be recorded with the logits: the same arrays, a row each, whatever comes behind a step."""
    made = bench(40)
    if not hasattr(made.sampler, "is_static"):
        pytest.skip("it has no is_static, which may be left out")
    require(isinstance(made.sampler, StaticSampler), "it has is_static and is no StaticSampler")
    logits = random_logits(9, 40, seed=2)
    logits[3, 7], logits[4], logits[5] = np.nan, -np.inf, 1.0
    tried: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0},
        "greedy with filters": {"temperature": 0.0, "top_p": 0.3, "top_k": 4, "seed": np.arange(9)},
        "drawn": {"temperature": np.where(np.arange(9) == 8, 1.0, 0.0)},
        "forced": {"temperature": 0.0, "forced": [-1] * 8 + [3]},
        "suppressed": {"temperature": 0.0, "eos_suppress": [[2, 5]]},
        "biased": {"temperature": 0.0, "bias": [[2, 5]], "bias_value": [90.0]},
        "alternatives": {"temperature": 0.0, "top_logprobs": [0] * 8 + [2], "max_top_logprobs": 2},
        "raw": {"temperature": 0.0, "logprobs_raw": [0] * 8 + [1]},
        "masked": {"temperature": 0.0, **masks(9, 40, r2=[1, 2])},
    }
    for name, given in tried.items():
        inputs = step_inputs(9, **given)
        if not made.sampler.is_static(inputs):
            continue
        wanted, alone = made.step(logits, inputs), made.static(logits)
        for part in ("tokens", "logprobs", "status"):
            equal = np.array_equal(getattr(alone, part), getattr(wanted, part), equal_nan=part == "logprobs")
            require(equal, f"{part} of a static step are not those of sample", case=name)


def test_check_params_takes_parameters_that_ask_for_nothing(bench: Any) -> None:
    from deepinfer_core.parameters.sampling_params import SamplingParams

    check = getattr(bench(40).sampler, "check_params", None)
    if check is None:
        pytest.skip("it has no check_params, which may be left out")
    check(SamplingParams())
    check(SamplingParams(temperature=0.0, max_tokens=3))


def test_sampler_with_drafts_says_so_by_its_methods(bench: Any) -> None:
    made = bench(40, draft_tokens=2)
    if not hasattr(made.sampler, "draft"):
        pytest.skip("it draws no drafts, which is not required")
    require(isinstance(made.sampler, DraftingSampler), "it has draft and is no DraftingSampler")


def test_prompt_scores_are_those_of_a_prompt_scorer(bench: Any) -> None:
    sampler = bench(40).sampler
    if not hasattr(sampler, "prompt_logprobs"):
        pytest.skip("it scores no prompts, which is not required")
    require(isinstance(sampler, PromptScorer), "it has prompt_logprobs and is no PromptScorer")
