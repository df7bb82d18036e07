"""Whole runs under the real sampler: what drafts may change, and what they never change."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from drafting_toys import whole_text
from engine_toys import check_idle, ids, prompts_of
from verified_toys import SPOILT, verified_llm

from deepinfer_core.assembly import build
from deepinfer_core.parameters.sampling_params import SamplingParams

pytest.importorskip("torch", reason="the sampler is plain torch")
pytest.importorskip("deepinfer_samplers", reason="the sampler is a plugin")
pytestmark = pytest.mark.usefixtures("overlap")


def slow(*values: Any) -> list[Any]:
    """Values that the nightly run adds."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


COUNTS = (9, 1, 30, 17, 23, 2)
PROMPTS = prompts_of(6, 7, seed=41)


def params_of(*counts: int, temperature: float = 0.0, **more: Any) -> list[SamplingParams]:
    return [
        SamplingParams(temperature=temperature, max_tokens=n, ignore_eos=True, seed=i + 1, **more)
        for i, n in enumerate(counts)
    ]


def run(spoil: str, params: list[SamplingParams], prompts: list[list[int]] = PROMPTS, **settings: Any) -> list[Any]:
    with verified_llm(SPOILT[spoil], **settings) as llm:
        outputs = llm.generate(prompts, params)
        check_idle(llm)
    failed = [output.error for output in outputs if output.error is not None]
    if failed:
        raise AssertionError(f"{failed}")
    return outputs


@pytest.mark.parametrize("spoil", list(SPOILT))
@pytest.mark.parametrize("draft_tokens", [1, 5, *slow(0, 2, 3, 4)])
def test_greedy_tokens_are_those_of_the_run_without_drafts(draft_tokens: int, spoil: str) -> None:
    outputs = run(spoil, params_of(*COUNTS), draft_tokens=draft_tokens, max_num_seqs=4)
    assert ids(outputs) == [whole_text(p, n)[len(p) :] for p, n in zip(PROMPTS, COUNTS, strict=True)]


@pytest.mark.parametrize("temperature", [1.0, *slow(0.6)])
@pytest.mark.parametrize("spoil", list(SPOILT))
@pytest.mark.parametrize("draft_tokens", [3, *slow(1, 5)])
def test_coupled_tokens_are_those_of_the_run_without_drafts(draft_tokens: int, spoil: str, temperature: float) -> None:
    params = params_of(*COUNTS, temperature=temperature, top_p=0.95)
    settings = {"verify": "coupled", "max_num_seqs": 4}
    with_drafts = run(spoil, params, draft_tokens=draft_tokens, **settings)
    assert ids(with_drafts) == ids(run(spoil, params, **settings))


@pytest.mark.parametrize("verify", ["rejection", "coupled"])
def test_preemption_and_chunks_do_not_change_greedy_or_coupled_tokens(
    verify: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    temperature = 0.8 if verify == "coupled" else 0.0
    prompts = prompts_of(4, 19, seed=43)
    params = params_of(30, 30, 30, 30, temperature=temperature)
    plain = run("none", params, prompts, verify=verify)
    planned = build.plan_pools
    monkeypatch.setattr(build, "plan_pools", lambda *a, **k: attrs.evolve(planned(*a, **k), num_blocks=24))
    settings = {"draft_tokens": 4, "verify": verify, "max_num_seqs": 4, "max_chunk": 5}
    with verified_llm(SPOILT["in rotation"], **settings) as llm:
        outputs = llm.generate(prompts, params)
        check_idle(llm)
        assert llm.built.engine.core.stats().preemptions >= 1
    assert ids(outputs) == ids(plain)


def test_drafts_equal_to_the_model_are_all_accepted_under_rejection() -> None:
    """p = q: the ratio is 1, so nothing is ever rejected, at any temperature."""
    with verified_llm(SPOILT["none"], draft_tokens=4) as llm:
        llm.generate(PROMPTS, params_of(*[21] * 6, temperature=1.0))
        stats = llm.built.engine.core.stats()
    assert stats.tokens_accepted >= 6 * 16


def test_same_seed_gives_the_same_tokens_again_under_rejection() -> None:
    params = params_of(*COUNTS, temperature=1.0)
    settings = {"draft_tokens": 3, "max_num_seqs": 4, "deterministic": "run"}
    assert ids(run("in rotation", params, **settings)) == ids(run("in rotation", params, **settings))


def test_deterministic_run_needs_no_seeds() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    first, again = (ids(run("in rotation", [params] * 6, draft_tokens=3, deterministic="run")) for _ in range(2))
    assert first == again
    assert len({tuple(tokens) for tokens in first}) == 6


@pytest.mark.parametrize("draft_tokens", [5, *slow(0, 2)])
def test_deterministic_batch_gives_the_tokens_of_a_request_alone(draft_tokens: int) -> None:
    params = params_of(*COUNTS, temperature=0.9)
    settings = {"draft_tokens": draft_tokens, "deterministic": "batch"}
    together = ids(run("in rotation", params, **settings))
    for i, (prompt, one) in enumerate(zip(PROMPTS, params, strict=True)):
        assert ids(run("in rotation", [one], [prompt], max_num_seqs=1, **settings)) == [together[i]]


def test_requests_that_end_at_different_times_get_their_solo_tokens() -> None:
    prompts = [prompts_of(1, 3 + i % 7, seed=70 + i)[0] for i in range(16)]
    params = params_of(*range(1, 17))
    outputs = run("in rotation", params, prompts, draft_tokens=5, max_num_seqs=4)
    assert ids(outputs) == [whole_text(p, n)[len(p) :] for p, n in zip(prompts, range(1, 17), strict=True)]
    assert {output.finish_reason for output in outputs} == {"length"}


@pytest.mark.parametrize("limit", [2, 5, *slow(1, 3, 4, 6, 7, 8)])
def test_stop_in_an_accepted_block_wins_over_a_later_limit(limit: int) -> None:
    prompt = PROMPTS[0]
    answer = whole_text(prompt, 8)[len(prompt) :]
    at = next(i for i in range(2, 8) if answer[i] not in answer[:i])
    params = SamplingParams(temperature=0, max_tokens=limit, ignore_eos=True, stop_token_ids=[answer[at]])
    (output,) = run("none", [params], [prompt], draft_tokens=5)
    if limit <= at:
        assert (list(output.token_ids), output.finish_reason) == (answer[:limit], "length")
    else:
        assert (list(output.token_ids), output.finish_reason) == (answer[: at + 1], "stop")


@pytest.mark.parametrize("end", ["limit", "stop token"])
def test_stop_string_at_an_accepted_draft_wins_over_an_end_later_in_the_block(end: str) -> None:
    """The core has ended the request by then, for what comes behind; its neighbour goes on."""
    prompt, answer = next(
        (p, text) for p in prompts_of(99, 9) if len(set(text := whole_text(p, 4)[len(p) :])) == 4 and 32 < text[1] < 127
    )
    limits: dict[str, Any] = {"max_tokens": 4} if end == "limit" else {"max_tokens": 9, "stop_token_ids": [answer[3]]}
    stopped = SamplingParams(temperature=0, ignore_eos=True, stop=chr(answer[1]), **limits)
    first, second = run("none", [stopped, *params_of(9)], [prompt, PROMPTS[0]], draft_tokens=5)
    assert (list(first.token_ids), first.finish_reason) == (answer[:2], "stop")
    assert list(second.token_ids) == whole_text(PROMPTS[0], 9)[len(PROMPTS[0]) :]


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_min_tokens_holds_within_a_block(draft_tokens: int) -> None:
    prompt = PROMPTS[1]
    answer = whole_text(prompt, 12)[len(prompt) :]
    params = SamplingParams(
        temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[answer[2]], min_tokens=6, seed=1
    )
    (output,) = run("none", [params], [prompt], draft_tokens=draft_tokens)
    (plain,) = run("none", [params], [prompt])
    assert output.token_ids == plain.token_ids
    assert answer[2] not in output.token_ids[:6]
