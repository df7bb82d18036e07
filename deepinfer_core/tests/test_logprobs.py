"""Penalties, biases, forced tokens and log-probabilities, from the parameters through the engine and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from engine_toys import EOS, TOKENS, VOCAB, Faulty, ToyModel, ToySampler, check_idle, prompts_of, small_pool, toy_llm
from scoring_toys import ScoringSampler, solo, solo_prompt
from tiny_grammar import TinyEngine

from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.pipeline import prompt_scores
from deepinfer_core.requests.finish_detail import FinishDetail
from deepinfer_core.requests.token_logprobs import FLOOR

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": False}


def scoring_llm(sampler: Any = None, **settings: object) -> LLM:
    return toy_llm(parts={"sampler": sampler or ScoringSampler()}, **settings)


@pytest.fixture(params=[True, False], ids=["overlap", "serial"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with scoring_llm(overlap=request.param) as made:
        yield made
        check_idle(made)


def pairs(completion: Any) -> list[tuple[int, float]]:
    return [(item.token_id, item.logprob) for item in completion.logprobs]


def require_same(got: list[tuple[int, float]], want: list[tuple[int, float]]) -> None:
    if [t for t, _ in got] != [t for t, _ in want]:
        raise AssertionError(f"{got} is not {want}")
    np.testing.assert_allclose([p for _, p in got], [p for _, p in want], rtol=1e-5, atol=1e-5)


def require_same_prompt(got: Any, want: list[float | None]) -> None:
    if got is None or len(got) != len(want) or got[0] is not None:
        raise AssertionError(f"{got} is not {want}")
    np.testing.assert_allclose(got[1:], np.array(want[1:], dtype=np.float64), rtol=1e-5, atol=1e-5)


def test_each_token_has_its_logprob_and_alternatives(llm: LLM) -> None:
    (prompt,) = prompts_of(1, 9)
    (output,) = llm.generate([prompt], SamplingParams(max_tokens=12, top_logprobs=3, **GREEDY))
    assert output.logprobs is not None
    require_same(pairs(output), solo(prompt, 12))
    assert len(output.logprobs) == len(output.token_ids)
    for item in output.logprobs:
        assert item.top[0] == (item.token_id, item.logprob)
        assert [p for _, p in item.top] == sorted((p for _, p in item.top), reverse=True)
        assert len(item.top) == 3
        assert item.draft_logprob is None
        assert item.sum_smaller is None
    assert output.cumulative_logprob == pytest.approx(sum(p for _, p in solo(prompt, 12)), rel=1e-5)


def test_what_nobody_asked_for_is_absent(llm: LLM) -> None:
    asked, silent = llm.generate(
        prompts_of(2, 5), [SamplingParams(max_tokens=3, top_logprobs=2), SamplingParams(max_tokens=3)]
    )
    assert asked.logprobs is not None
    assert silent.logprobs is None
    assert silent.cumulative_logprob is None
    assert silent.prompt_logprobs is None
    assert {"logprobs", "cumulative_logprob", "prompt_logprobs", "drafted_tokens"}.isdisjoint(silent.as_record())


def test_alternatives_are_those_of_each_request(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=3, top_logprobs=n, logprobs=True, **GREEDY) for n in (0, 1, 5)]
    outputs = llm.generate(prompts_of(3, 5), params)
    assert [{len(item.top) for item in o.logprobs or ()} for o in outputs] == [{0}, {1}, {5}]


def test_more_alternatives_than_tokens_are_all_tokens(llm: LLM) -> None:
    (output,) = llm.generate(prompts_of(1, 5), SamplingParams(max_tokens=2, top_logprobs=1000, **GREEDY))
    assert output.logprobs is not None
    assert {len(item.top) for item in output.logprobs} == {258}


def test_raw_logprobs_are_those_of_the_model(llm: LLM) -> None:
    (prompt,) = prompts_of(1, 7)
    bias = {9: 100.0}
    params = [
        SamplingParams(max_tokens=4, logprobs=True, logprobs_mode=mode, logit_bias=bias, **GREEDY)
        for mode in ("raw", "processed")
    ]
    raw, processed = llm.generate([prompt, prompt], params)
    require_same(pairs(raw), solo(prompt, 4, bias=bias, raw=True))
    require_same(pairs(processed), solo(prompt, 4, bias=bias))
    assert raw.token_ids == processed.token_ids == (9,) * 4


@pytest.mark.parametrize(
    ("settings", "pool"),
    [({}, ()), ({"max_chunk": 3}, ()), ({"prefix_cache": True}, ()), ({}, (22, 4))],
    ids=["plain", "chunks", "prefix_cache", "preemption"],
)
@pytest.mark.parametrize("overlap", [True, False])
def test_penalties_count_what_was_put_out_and_nothing_else(
    settings: dict[str, object], pool: tuple[int, int], overlap: bool
) -> None:
    prompts = prompts_of(6, 11, seed=3)
    changes = [{"frequency": 2.0}, {"presence": -2.0}, {"frequency": -2.0}, {}, {"presence": 1.5}, {"frequency": 0.5}]
    params = [
        SamplingParams(
            max_tokens=24,
            logprobs=True,
            temperature=0,
            frequency_penalty=c.get("frequency", 0),
            presence_penalty=c.get("presence", 0),
        )
        for c in changes
    ]
    if pool:
        settings = {**settings, **small_pool(*pool)}
    with scoring_llm(overlap=overlap, **settings) as llm:
        outputs = llm.generate(prompts, params)
        for prompt, output, change in zip(prompts, outputs, changes, strict=True):
            require_same(pairs(output), solo(prompt, 24, **change))
        assert (llm.built.engine.core.stats().preemptions > 0) == bool(pool)
        check_idle(llm)


def test_penalised_samples_of_one_prompt_start_from_its_history(llm: LLM) -> None:
    (prompt,) = prompts_of(1, 10, seed=5)
    params = SamplingParams(max_tokens=10, n=3, logprobs=True, frequency_penalty=1.0, temperature=0)
    (output,) = llm.generate([prompt], params)
    for completion in output.outputs:
        require_same(pairs(completion), solo(prompt, 10, frequency=1.0))


@pytest.mark.parametrize("chunk", [None, 1, 3, 20])
@pytest.mark.parametrize("overlap", [True, False])
def test_prompt_logprobs_are_the_same_for_every_chunk_size(chunk: int | None, overlap: bool) -> None:
    prompts = [*prompts_of(3, 13), [65]]
    settings = {} if chunk is None else {"max_chunk": chunk}
    with scoring_llm(overlap=overlap, **settings) as llm:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=3, prompt_logprobs=True, **GREEDY))
        for prompt, output in zip(prompts, outputs, strict=True):
            require_same_prompt(output.prompt_logprobs, solo_prompt(prompt))
            assert output.logprobs is None
        check_idle(llm)


def test_prompt_logprobs_skip_the_prefix_cache_and_the_next_request_uses_it() -> None:
    (prompt,) = prompts_of(1, 40)
    with scoring_llm(prefix_cache=True) as llm:
        plain = SamplingParams(max_tokens=2, **GREEDY)
        llm.generate([prompt], plain)
        (scored,) = llm.generate([prompt], SamplingParams(max_tokens=2, prompt_logprobs=True, **GREEDY))
        (after,) = llm.generate([prompt], plain)
        require_same_prompt(scored.prompt_logprobs, solo_prompt(prompt))
        assert scored.cached_tokens == 0
        assert after.cached_tokens > 0
        assert after.token_ids == scored.token_ids


def test_prompt_logprobs_survive_a_preemption() -> None:
    prompts = prompts_of(6, 17, seed=4)
    with scoring_llm(max_chunk=5, **small_pool(24, 4)) as llm:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=24, prompt_logprobs=True, temperature=0))
        assert llm.built.engine.core.stats().preemptions > 0
        for prompt, output in zip(prompts, outputs, strict=True):
            require_same_prompt(output.prompt_logprobs, solo_prompt(prompt))
        check_idle(llm)


def test_prompt_of_several_samples_is_scored_once() -> None:
    sampler = ScoringSampler()
    (prompt,) = prompts_of(1, 12)
    with scoring_llm(sampler) as llm:
        (output,) = llm.generate([prompt], SamplingParams(max_tokens=2, n=3, prompt_logprobs=True, **GREEDY))
    require_same_prompt(output.prompt_logprobs, solo_prompt(prompt))
    assert sum(sampler.scored) == len(prompt) - 1


def test_prompt_rows_get_logits_in_bounded_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_scores, "SLICE_BYTES", 4 * VOCAB * 5)
    sampler = ScoringSampler()
    prompts = prompts_of(2, 12)
    with scoring_llm(sampler) as llm:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=1, prompt_logprobs=True, **GREEDY))
    for prompt, output in zip(prompts, outputs, strict=True):
        require_same_prompt(output.prompt_logprobs, solo_prompt(prompt))
    assert sampler.scored == [5, 5, 5, 5, 2]


def test_slices_of_a_large_vocabulary_stay_within_their_bytes() -> None:
    assert prompt_scores.slice_rows(129280) * 129280 * 4 <= prompt_scores.SLICE_BYTES
    assert prompt_scores.slice_rows(300) == 8192
    assert prompt_scores.slice_rows(2**31) == 1


def test_forced_tokens_are_put_out_with_their_logprobs(llm: LLM) -> None:
    (prompt,) = prompts_of(1, 8)
    forced = [7, -1, 200, 200]
    params = SamplingParams(max_tokens=6, n=2, logprobs=True, forced_token_ids=forced, temperature=0)
    (output,) = llm.generate([prompt], params)
    want = solo(prompt, 6, forced=forced)
    assert [t for t, _ in want][0::2] == [7, 200, want[4][0]]
    for completion in output.outputs:
        require_same(pairs(completion), want)


class StrictSampler(ScoringSampler):
    """Refuses a forced token that it never chooses, as the canonical sampler does."""

    def sample(self, logits: Any, inputs: Any) -> Any:
        if inputs.forced is not None and int(inputs.forced.max()) >= TOKENS:
            raise ValueError(f"forced {inputs.forced.max()}")
        return super().sample(logits, inputs)


def test_forced_token_without_text_is_refused_and_the_others_go_on() -> None:
    """The head is wider than the tokenizer; its further rows are never chosen."""
    late = {"schema_type": "regex", "schema": "a", "trigger_token_ids": [TOKENS]}
    params = [
        SamplingParams(max_tokens=3, forced_token_ids=[TOKENS - 1]),
        SamplingParams(max_tokens=3, forced_token_ids=[-1, TOKENS]),
        SamplingParams(max_tokens=3, so_args=late),
    ]
    with toy_llm(parts={"sampler": StrictSampler(), "grammar": TinyEngine}) as made:
        good, *refused = made.generate(prompts_of(3, 6), params)
        check_idle(made)
    assert (good.finish_reason, good.token_ids[0]) == ("length", TOKENS - 1)
    for output, field in zip(refused, ("forced_token_ids", "so_args: trigger_token_ids"), strict=True):
        assert output.finish_reason == "input"
        assert output.error is not None
        assert output.error.details["field"] == field


def test_forced_end_token_ends_the_answer(llm: LLM) -> None:
    (output,) = llm.generate(prompts_of(1, 8), SamplingParams(max_tokens=6, logprobs=True, forced_token_ids=[5, EOS]))
    assert output.token_ids == (5, EOS)
    assert output.finish_detail is FinishDetail.EOS
    assert output.logprobs is not None
    assert len(output.logprobs) == 2


def test_biased_tokens_are_chosen_or_never_chosen(llm: LLM) -> None:
    (prompt,) = prompts_of(1, 6)
    best = solo(prompt, 1)[0][0]
    params = [SamplingParams(max_tokens=8, temperature=0, logit_bias=b) for b in ({best: -100}, {17: 100}, {})]
    never, always, free = llm.generate([prompt] * 3, params)
    assert best not in never.token_ids
    assert always.token_ids == (17,) * 8
    assert free.token_ids[0] == best


def test_stop_string_cuts_tokens_and_logprobs_at_the_same_place(llm: LLM) -> None:
    (prompt,) = prompts_of(1, 6)
    forced = list(b"xyzabc")
    params = SamplingParams(max_tokens=8, stop="za", top_logprobs=1, forced_token_ids=forced, temperature=0)
    pieces = list(llm.stream([prompt], params))
    output = pieces[-1].output
    assert output is not None
    assert (output.text, output.finish_detail) == ("xy", FinishDetail.STOP_STRING)
    assert output.token_ids == tuple(b"xyza")
    assert output.logprobs is not None
    assert [item.token_id for item in output.logprobs] == list(b"xyza")
    streamed = [item for piece in pieces for item in piece.logprobs or ()]
    assert streamed == list(output.logprobs)
    assert len(streamed) == sum(len(piece.token_ids) for piece in pieces)


def test_results_with_logprobs_are_strict_json(llm: LLM) -> None:
    params = SamplingParams(
        max_tokens=5, n=2, top_logprobs=5, prompt_logprobs=True, logit_bias={3: -100}, forced_token_ids=[3, 3]
    )
    (output,) = llm.generate(prompts_of(1, 4), params)
    record = json.loads(json.dumps(output.as_record(), allow_nan=False))
    assert record["prompt_logprobs"][0] is None
    assert len(record["logprobs"]) == record["num_output_tokens"]
    assert [len(item["top"]) for item in record["logprobs"]] == [5] * len(record["logprobs"])
    assert record["outputs"][1]["cumulative_logprob"] < 0


def test_impossible_token_has_the_floor_and_not_infinity() -> None:
    class Certain(ScoringSampler):
        def sample(self, logits: Any, inputs: Any) -> Any:
            out = super().sample(logits, inputs)
            out.sampled_logprob[:] = -np.inf
            out.top_logprobs[:, 1:] = -np.inf
            return out

        def prompt_logprobs(self, logits: Any, tokens: Any) -> Any:
            return np.array([-np.inf, np.nan, -0.5], dtype=np.float32)[: len(tokens)]

    with scoring_llm(Certain()) as llm:
        (output,) = llm.generate(
            [[1, 2, 3, 4]], SamplingParams(max_tokens=2, top_logprobs=2, prompt_logprobs=True, **GREEDY)
        )
    assert output.prompt_logprobs == (None, FLOOR, FLOOR, -0.5)
    assert output.logprobs is not None
    assert [item.logprob for item in output.logprobs] == [FLOOR, FLOOR]
    assert [item.top[1][1] for item in output.logprobs] == [FLOOR, FLOOR]
    json.dumps(output.as_record(), allow_nan=False)


def test_sum_smaller_comes_with_its_setting_only() -> None:
    (prompt,) = prompts_of(1, 4)
    params = SamplingParams(max_tokens=3, logprobs=True, **GREEDY)
    with scoring_llm(ScoringSampler(with_sum_smaller=True), sum_smaller=True) as llm:
        (output,) = llm.generate([prompt], params)
    assert output.logprobs is not None
    assert all(item.sum_smaller == pytest.approx(1.0, abs=1e-3) for item in output.logprobs)
    with scoring_llm() as llm:
        (output,) = llm.generate([prompt], params)
    assert output.logprobs is not None
    assert {item.sum_smaller for item in output.logprobs} == {None}


def test_sampler_refuses_parameters_of_one_request_only(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=3, repetition_penalty=r, **GREEDY) for r in (1, 1.5, 1)]
    good, refused, also_good = llm.generate(prompts_of(3, 5), params)
    assert refused.finish_reason == "input"
    assert refused.error is not None
    assert refused.error.code == "E_UNSUPPORTED"
    assert good.ok
    assert also_good.ok


def test_sampler_without_prompt_logprobs_refuses_them_by_name() -> None:
    with toy_llm(parts={"sampler": ToySampler()}) as llm:
        params = [SamplingParams(max_tokens=2, prompt_logprobs=asked) for asked in (True, False)]
        refused, good = llm.generate(prompts_of(2, 5), params)
    assert refused.error is not None
    assert refused.error.what.startswith("prompt_logprobs: the sampler of this engine")
    assert good.ok


@pytest.mark.parametrize("field", ["logit_bias", "forced_token_ids"])
def test_id_outside_the_vocabulary_is_refused_and_the_next_request_works(llm: LLM, field: str) -> None:
    def prompt(token: int) -> dict[str, object]:
        return {"prompt": "ab", "max_tokens": 2, field: {str(token): 1} if field == "logit_bias" else [token]}

    outputs = llm.generate([prompt(VOCAB), prompt(VOCAB - 3), prompt(999)])
    assert [o.finish_reason for o in outputs] == ["input", "length", "input"]
    assert outputs[0].error is not None
    assert f"{field} is {VOCAB}; allowed: token ids from 0 to {VOCAB - 1}" in outputs[0].error.what


def test_wrong_number_of_prompt_logprobs_ends_the_step_with_the_sampler_named() -> None:
    class Short(ScoringSampler):
        def prompt_logprobs(self, logits: Any, tokens: Any) -> Any:
            return super().prompt_logprobs(logits, tokens)[1:]

    with scoring_llm(Short()) as llm:
        (failed,) = llm.generate(prompts_of(1, 5), SamplingParams(max_tokens=2, prompt_logprobs=True))
        (good,) = llm.generate(prompts_of(1, 5), SamplingParams(max_tokens=2))
        check_idle(llm)
    assert failed.error is not None
    assert "sampler.prompt_logprobs of toy (acme-sampler 0.1) failed" in failed.error.what
    assert good.ok


def test_positive_prompt_logprob_is_no_result() -> None:
    class Wrong(ScoringSampler):
        def prompt_logprobs(self, logits: Any, tokens: Any) -> Any:
            return -super().prompt_logprobs(logits, tokens)

    with scoring_llm(Wrong()) as llm:
        (failed,) = llm.generate(prompts_of(1, 5), SamplingParams(max_tokens=2, prompt_logprobs=True))
        check_idle(llm)
    assert failed.error is not None
    assert "expected values of at most 0" in str(failed.error)


def test_fault_in_the_logits_of_a_prompt_ends_only_its_step() -> None:
    def fault(method: str, number: int, go: Any) -> Any:
        if number == 1:
            raise RuntimeError("no memory for logits")
        return go()

    model = Faulty(ToyModel(), fault, "logits")
    with toy_llm(parts={"sampler": ScoringSampler(), "model": model}) as llm:
        (failed,) = llm.generate(prompts_of(1, 5), SamplingParams(max_tokens=2, prompt_logprobs=True))
        (good,) = llm.generate(prompts_of(1, 5), SamplingParams(max_tokens=2, prompt_logprobs=True, **GREEDY))
        check_idle(llm)
    assert failed.error is not None
    assert "model.logits" in failed.error.what
    require_same_prompt(good.prompt_logprobs, solo_prompt(prompts_of(1, 5)[0]))


def test_aborted_request_keeps_logprobs_of_the_tokens_that_it_has(llm: LLM) -> None:
    stream = llm.stream(prompts_of(1, 5), SamplingParams(max_tokens=200, logprobs=True, ignore_eos=True))
    first = next(stream)
    stream.cancel(0)
    *_, last = [first, *stream]
    assert last.output is not None
    assert last.output.finish_reason == "abort"
    assert last.output.logprobs is not None
    assert len(last.output.logprobs) == len(last.output.token_ids) > 0


def test_finish_detail_is_one_of_the_closed_list(llm: LLM) -> None:
    params = [
        SamplingParams(max_tokens=4, forced_token_ids=[EOS]),
        SamplingParams(max_tokens=4, forced_token_ids=[9], stop_token_ids=[9]),
        SamplingParams(max_tokens=4, forced_token_ids=list(b"ab"), stop="ab"),
        SamplingParams(max_tokens=2, forced_token_ids=list(b"ab")),
        SamplingParams(max_tokens=2000, temperature=0, logit_bias={97: 100}),
    ]
    outputs = llm.generate(prompts_of(5, 5), params)
    assert [o.finish_detail for o in outputs] == [
        FinishDetail.EOS,
        FinishDetail.STOP_TOKEN,
        FinishDetail.STOP_STRING,
        FinishDetail.MAX_TOKENS,
        FinishDetail.MODEL_LENGTH,
    ]
    assert [o.as_record()["finish_detail"] for o in outputs][2] == "stop_string"
