"""What a sampler has, and that one step of it works (``interfaces.Sampler``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.sampler.steps import MAX_ROWS, random_logits, step_inputs
from deepinfer_core.interfaces import DraftingSampler, PromptScorer, Sampler
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
