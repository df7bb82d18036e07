"""The engine with the shipped model and its draft head: drafts change how many steps an answer takes, and no token."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import pytest

from deepinfer_core.errors import ConfigError
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams

NEEDED = ("torch", "deepinfer_cpu", "deepinfer_v41", "deepinfer_samplers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"install {', '.join(MISSING)} to run the shipped model")

PROMPTS = ["import os\n" * 4, "def f(x):\n    return x\n" * 2, "class A:\n" * 6]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=14, ignore_eos=True),
    SamplingParams(temperature=0.8, top_p=0.9, max_tokens=9, seed=7, ignore_eos=True),
    SamplingParams(temperature=1, top_k=20, min_p=0.01, max_tokens=14, seed=8, ignore_eos=True),
]


def run(draft_tokens: int, params: list[SamplingParams] = PARAMS, **settings: Any) -> tuple[list[Any], Any, Any]:
    """Outputs, the core's statistics and the times of coupled verification, whose tokens depend on no draft."""
    settings = {"max_num_seqs": 3, "block_size": 16, "max_model_len": 128, "verify": "coupled", **settings}
    with LLM(backend="cpu", draft_tokens=draft_tokens, deterministic="batch", **settings) as llm:
        outputs = llm.generate(PROMPTS, params)
        core = llm.built.engine.core
        core.audit()
        for output in outputs:
            if output.error is not None:
                raise output.error
        return outputs, core.stats(), llm.times


def tokens(outputs: list[Any]) -> list[tuple[int, ...]]:
    return [output.token_ids for output in outputs]


@functools.cache
def plain() -> list[tuple[int, ...]]:
    return tokens(run(0, overlap=False)[0])


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(
    "draft_tokens", [4, pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_drafts_change_no_token_and_wait_for_no_device(draft_tokens: int, overlap: bool) -> None:
    outputs, stats, times = run(draft_tokens, overlap=overlap, sync_guard=True)
    assert tokens(outputs) == plain()
    assert 0 < stats.tokens_accepted < stats.tokens_drafted
    assert times.steps < 1 + 14
    assert times.draft > 0


def test_answers_that_end_at_the_longest_length_end_there() -> None:
    """Rows and drafts of the last steps lie beyond the last position that a request may have."""
    lengths = [SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)] * 3
    got, _, _ = run(4, lengths, max_model_len=48)
    want, _, _ = run(0, lengths, max_model_len=48)
    assert tokens(got) == tokens(want)
    assert {output.finish_reason for output in got} == {"length"}


@pytest.mark.slow
def test_samples_of_one_prompt_are_those_without_drafts() -> None:
    several = [SamplingParams(temperature=0.9, max_tokens=12, seed=5, ignore_eos=True, n=3)] * 3
    got, want = run(4, several)[0], run(0, several)[0]
    assert tokens(got) == tokens(want)


@pytest.mark.parametrize(("draft_tokens", "text"), [(5, "the limit of this model is 4"), (-1, "from 0 to 15")])
def test_wrong_draft_length_is_refused_before_weights_are_read(
    draft_tokens: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepinfer_v41.model import V41Model

    def read(self: Any, path: Any) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(V41Model, "load", read)
    with pytest.raises(ConfigError, match=text):
        LLM(backend="cpu", draft_tokens=draft_tokens)
