"""The engine over random models whose draft head proposes blocks of 5.

Nothing here is trained, so almost every draft is wrong; in one model every draft is right.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from v41_equal_draft import equal_to_the_model
from v41_tiny import SMALL, edited, prompt, tiny_path

from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams

K = 5


def with_tokenizer(path: Path) -> Path:
    """Every byte is a token, and so are pairs of them, which no text is cut into."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(letters[0] + letter for letter in letters)]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}), "utf-8")
    return path


@functools.cache
def random_model() -> str:
    return str(with_tokenizer(edited(tiny_path(**SMALL), lambda tensors: None)))


def run(model: str, counts: tuple[int, ...], **settings: Any) -> tuple[list[tuple[int, ...]], Any]:
    settings = {"max_num_seqs": 4, "max_model_len": 96, "verify": "coupled", "deterministic": "batch", **settings}
    prompts = [prompt(3 + 5 * i % 23, seed=i) for i in range(len(counts))]
    params = [
        SamplingParams(temperature=0.7 * (i % 2), seed=i, max_tokens=n, ignore_eos=True) for i, n in enumerate(counts)
    ]
    with LLM(backend="cpu", model=model, **settings) as llm:
        outputs = llm.generate(prompts, params)
        core = llm.built.engine.core
        core.audit()
        for output in outputs:
            if output.error is not None:
                raise output.error
        return [output.token_ids for output in outputs], core.stats()


@functools.cache
def plain(counts: tuple[int, ...]) -> list[tuple[int, ...]]:
    return run(random_model(), counts)[0]


@pytest.mark.parametrize(
    ("requests", "draft_tokens", "overlap"),
    [(8, 5, True), *(pytest.param(16, k, o, marks=pytest.mark.slow) for k in (1, 2, 5) for o in (True, False))],
)
def test_requests_that_end_at_different_times_have_the_tokens_of_a_run_without_drafts(
    requests: int, draft_tokens: int, overlap: bool
) -> None:
    counts = tuple(range(1, requests + 1))
    tokens, stats = run(random_model(), counts, draft_tokens=draft_tokens, overlap=overlap)
    assert [len(ids) for ids in tokens] == list(counts)
    assert tokens == plain(counts)
    assert stats.tokens_accepted < stats.tokens_drafted


@pytest.mark.parametrize("verify", ["rejection", pytest.param("coupled", marks=pytest.mark.slow)])
def test_draft_that_equals_the_model_is_accepted_whole(verify: str) -> None:
    """Greedy requests, whose limits end with a block; sampled ones may part where the draft is rounded otherwise."""
    path = with_tokenizer(edited(tiny_path(dspark_markov_rank=128), equal_to_the_model))
    settings = {"verify": verify, "deterministic": "off", "overlap": False, "draft_tokens": K}
    prompts, params = (
        [prompt(9, seed=1), prompt(20, seed=2)],
        SamplingParams(temperature=0, max_tokens=19, ignore_eos=True),
    )
    with LLM(backend="cpu", model=str(path), max_num_seqs=2, **settings) as llm:
        llm.generate(prompts, params)
        stats, steps = llm.built.engine.core.stats(), llm.times.steps
    assert stats.tokens_accepted == stats.tokens_drafted == 2 * 3 * K
    assert steps == 1 + 3
