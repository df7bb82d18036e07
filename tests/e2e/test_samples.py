"""Several samples of a prompt on the shipped model: the tokens of as many requests with their seeds."""

from __future__ import annotations

import random

import pytest
from e2e_workload import pool_of

from deepinfer_core import LLM, RequestOutput, SamplingParams
from deepinfer_core.assembly import memory

pytestmark = pytest.mark.timeout(300)  # seconds on an idle machine, minutes on a crowded one

LENGTHS = (1, 2, 15, 16, 17, 33)
"""Around the blocks of 16 tokens and the groups of 2."""
PARAMS = SamplingParams(temperature=1.0, max_tokens=6, ignore_eos=True, n=3)


def prompts() -> list[list[int]]:
    draw = random.Random(5)
    return [[draw.randrange(3, 1500) for _ in range(length)] for length in LENGTHS]


def tokens(outputs: list[RequestOutput]) -> list[list[tuple[int, ...]]]:
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def separate(llm: LLM, outputs: list[RequestOutput]) -> list[list[tuple[int, ...]]]:
    """The same as requests of their own, with the seeds that were reported."""
    each = [(output.prompt_token_ids, completion.seed) for output in outputs for completion in output.outputs]
    params = [PARAMS.updated({"n": 1, "seed": seed}) for _, seed in each]
    flat = iter(output.token_ids for output in llm.generate([ids for ids, _ in each], params))
    return [[next(flat) for _ in output.outputs] for output in outputs]


@pytest.mark.parametrize("overlap", [True, False])
def test_samples_are_the_requests_with_their_seeds_and_share_the_prompt(overlap: bool) -> None:
    with LLM(block_size=16, max_num_seqs=20, overlap=overlap, seed=1) as llm:
        outputs = llm.generate(prompts(), PARAMS)
        computed = llm.times.prefill_tokens
        assert tokens(outputs) == separate(llm, outputs)
        llm.built.engine.core.audit()
    assert computed == sum(LENGTHS)
    assert all(len({c.token_ids for c in output.outputs}) > 1 for output in outputs)


def test_samples_with_drafts_do_not_depend_on_whether_they_share_the_prompt() -> None:
    """A sample that is forked draws its first token in a decode step, one that has to wait in a prefill."""
    made = []
    for settings in ({"max_num_seqs": 8}, {"max_num_seqs": 1, "overlap": False}):
        with LLM(block_size=16, seed=1, draft_tokens=4, verify="rejection", **settings) as llm:
            outputs = llm.generate(prompts()[:3], PARAMS.updated({"n": 2}))
            drafts = [[(c.verified_drafts, c.accepted_drafts) for c in output.outputs] for output in outputs]
            made.append((tokens(outputs), drafts, llm.times.prefill_tokens))
    assert made[0][:2] == made[1][:2]
    assert made[0][2] < made[1][2]  # the second engine has no place for a fork


@pytest.mark.slow  # the token comparison has samples on a small pool, too
def test_samples_on_a_pool_that_is_too_small_for_them_keep_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SLOT_SHARE", 1.0)
    params = PARAMS.updated({"max_tokens": 20})
    with LLM(block_size=16, max_num_seqs=20, seed=1) as roomy:
        want = tokens(roomy.generate(prompts(), params))
        pool = pool_of(roomy, blocks=8, slots=6)
    with pytest.warns(UserWarning, match="the caches hold"):
        small = LLM(block_size=16, max_num_seqs=5, seed=1, kv_memory=pool)
    with small as llm:
        assert tokens(llm.generate(prompts(), params)) == want
        stats = llm.built.engine.core.stats()
        llm.built.engine.core.audit()
    assert stats.preemptions > 0
