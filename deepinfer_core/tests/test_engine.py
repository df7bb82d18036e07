"""The engine over toy parts: same tokens whatever the batch, the chunks and the pool; nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from engine_toys import BLOCK, BOS, EOS, TOKENS, check_idle, ids, prompts_of, small_pool, solo_tokens, toy_llm

from deepinfer_core.errors import InvalidParameter
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams

LONG = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)

pytestmark = pytest.mark.usefixtures("overlap")


@contextmanager
def running(**settings: object) -> Iterator[LLM]:
    """An LLM that is audited at the end: idle, nothing may be held."""
    llm = toy_llm(**settings)  # type: ignore[arg-type]
    try:
        yield llm
        check_idle(llm)
    finally:
        llm.close()


def test_generate_equals_the_plain_model() -> None:
    prompts = prompts_of(9, 11)
    with running() as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=40))
    assert ids(outputs) == [solo_tokens(prompt, 40) for prompt in prompts]
    for output in outputs:
        ended = output.token_ids[-1] == EOS
        assert output.finish_reason == ("stop" if ended else "length")
        assert output.finish_detail == ("eos" if ended else "max_tokens")


def test_batch_equals_solo_for_sampled_requests() -> None:
    prompts = prompts_of(7, 5, seed=2)
    params = [SamplingParams(temperature=t, max_tokens=20, seed=s) for s, t in enumerate((0, 0.5, 1, 0, 2, 1, 0.1))]
    with running() as llm:
        together = ids(llm.generate(prompts, params))
        alone = [ids(llm.generate([prompt], p))[0] for prompt, p in zip(prompts, params, strict=True)]
        again = ids(llm.generate(list(reversed(prompts)), list(reversed(params))))[::-1]
    assert together == alone == again


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 8, 16, 37, 64])
def test_chunk_budget_does_not_change_the_tokens(budget: int) -> None:
    prompts = prompts_of(3, 37, seed=3)
    with running(max_chunk=budget) as llm:
        assert ids(llm.generate(prompts, LONG)) == [solo_tokens(p, 30, ends=frozenset()) for p in prompts]


@pytest.mark.parametrize("length", range(1, 14))
def test_every_prompt_length_agrees_with_the_plain_model(length: int) -> None:
    prompts = prompts_of(2, length, seed=length)
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    with running(max_chunk=3) as llm:
        assert ids(llm.generate(prompts, params)) == [solo_tokens(p, 9, ends=frozenset()) for p in prompts]


@pytest.mark.parametrize("chunk", [4, None])
@pytest.mark.parametrize("blocks", [16, 20, 31])
def test_preemption_does_not_change_the_tokens(blocks: int, chunk: int | None) -> None:
    prompts = prompts_of(4, 30, seed=4)
    with running(**small_pool(blocks, 4), max_chunk=chunk) as llm:
        outputs = llm.generate(prompts, LONG)
        assert llm.built.plan.num_blocks - 1 == blocks
    assert ids(outputs) == [solo_tokens(p, 30, ends=frozenset()) for p in prompts]


def test_three_requests_that_each_need_most_of_the_pool_all_end() -> None:
    prompts = prompts_of(3, 8, seed=5)
    with running(**small_pool(16, 3)) as llm:
        outputs = llm.generate(prompts, LONG)
        steps, stats = llm.times.steps, llm.built.engine.core.stats()
    assert ids(outputs) == [solo_tokens(p, 30, ends=frozenset()) for p in prompts]
    assert steps < 3 * 38  # fewer than there are tokens: what was computed is not given away again and again
    assert 1 <= stats.preemptions <= 6


def test_prompt_that_can_never_fit_is_one_error_and_the_others_run() -> None:
    prompts = prompts_of(1, 40) + prompts_of(1, 5)
    with running(**small_pool(32 // BLOCK, 2)) as llm:
        bad, good = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    assert (bad.finish_reason, good.finish_reason) == ("too_long", "length")
    assert bad.error is not None
    assert bad.error.code == "E_CAPACITY"
    assert bad.error.details["blocks_available"] == 8
    assert bad.error.details["blocks_needed"] == 10
    assert "40 tokens need 10 blocks of 4, the pool has 8" in bad.error.what
    assert list(good.token_ids) == solo_tokens(prompts[1], 4, ends=frozenset())


def test_answer_that_outgrows_the_pool_ends_and_the_others_run() -> None:
    prompts = prompts_of(3, 5, seed=6)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (100, 4, 4)]
    with running(**small_pool(8, 3)) as llm:
        outputs = llm.generate(prompts, params)
    assert outputs[0].finish_reason in ("too_long", "no_resource")
    assert list(outputs[0].token_ids) == solo_tokens(prompts[0], len(outputs[0].token_ids), ends=frozenset())
    assert len(outputs[0].token_ids) > 10
    assert [output.finish_reason for output in outputs[1:]] == ["length", "length"]


def test_context_limit_ends_an_answer_with_length() -> None:
    with running(max_model_len=20) as llm:
        (output,) = llm.generate([prompts_of(1, 10)[0]], SamplingParams(temperature=0, max_tokens=99, ignore_eos=True))
    assert (output.finish_reason, output.finish_detail) == ("length", "model_length")
    assert 10 <= len(output.token_ids) <= 11


def test_results_come_in_order_with_failed_ones_at_their_place() -> None:
    prompts: list[object] = ["a", "", [1, 999], "b", list(range(200)) * 2, "c\udc80", None, "d"]
    with running() as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))  # type: ignore[arg-type]
    assert [output.index for output in outputs] == list(range(8))
    codes = [output.error.code if output.error else "" for output in outputs]
    assert codes == ["", "E_PROMPT", "E_PROMPT", "", "E_PROMPT", "E_PROMPT", "E_PROMPT", ""]
    reasons = [output.finish_reason for output in outputs]
    assert reasons == ["length", "input", "input", "length", "too_long", "input", "input", "length"]
    assert outputs[4].error is not None
    assert outputs[4].error.details == {"tokens": 400, "limit": 255}


def test_stop_id_outside_the_vocabulary_is_refused_before_anything_runs() -> None:
    with running() as llm:
        with pytest.raises(InvalidParameter, match="stop_token_ids is 260"):
            llm.generate(["a", "b"], SamplingParams(stop_token_ids=[260]))
        assert llm.times.steps == 0
        assert llm.generate("a", SamplingParams(max_tokens=2, ignore_eos=True))[0].ok


def test_prompt_text_gets_the_begin_token() -> None:
    with running() as llm:
        (output,) = llm.generate("hi", SamplingParams(temperature=0, max_tokens=5))
    assert output.prompt_token_ids == (BOS, ord("h"), ord("i"))
    assert output.prompt == "hi"


def test_rows_of_the_head_beyond_the_tokenizer_are_never_chosen() -> None:
    with running() as llm:
        outputs = llm.generate(prompts_of(8, 3), SamplingParams(temperature=3, max_tokens=100, seed=3, ignore_eos=True))
    assert max(token for output in outputs for token in output.token_ids) < TOKENS


def test_five_thousand_prompts_on_a_small_pool_return_in_order() -> None:
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    with running(**small_pool(80, 32), validation="off") as llm:
        outputs = llm.generate(([i % 251, i // 251] for i in range(5000)), params)
        live_at_most = llm.built.engine.core.stats()
    assert [list(output.prompt_token_ids) for output in outputs] == [[i % 251, i // 251] for i in range(5000)]
    assert all(output.finish_reason == "length" for output in outputs)
    assert list(outputs[4321].token_ids) == solo_tokens(outputs[4321].prompt_token_ids, 2, ends=frozenset())
    assert live_at_most is not None


def test_prompts_are_read_only_as_places_become_free() -> None:
    read = 0

    def source() -> Iterator[list[int]]:
        nonlocal read
        for i in range(1000):
            read += 1
            yield [i % 256]

    with running(max_num_seqs=4) as llm, llm.stream(source(), LONG) as stream:
        next(stream)
        assert read <= 2 * 4


def test_seeds_are_returned_and_repeat_the_answer() -> None:
    params = SamplingParams(temperature=1, max_tokens=12)
    with running() as llm:
        first = llm.generate(["a", "a"], params)
        assert first[0].seed != first[1].seed
        again = llm.generate("a", SamplingParams(temperature=1, max_tokens=12, seed=first[1].seed))
    assert again[0].token_ids == first[1].token_ids


def test_engine_seed_fixes_the_seed_of_each_place() -> None:
    params = SamplingParams(temperature=1, max_tokens=12)
    with running(seed=5) as one, running(seed=5) as two, running(seed=6) as other:
        first, second, third = (llm.generate(["a", "a", "b"], params) for llm in (one, two, other))
        assert [output.seed for output in first] == [output.seed for output in one.generate(["a", "a", "b"], params)]
    assert [output.seed for output in first] == [output.seed for output in second]
    assert ids(first) == ids(second)
    assert [output.seed for output in first] != [output.seed for output in third]


def test_two_engines_in_one_process_do_not_disturb_each_other() -> None:
    prompts = prompts_of(4, 6, seed=8)
    with running() as one, running(max_chunk=4) as two, one.stream(prompts, LONG) as stream:
        collected: list[list[int]] = [[] for _ in prompts]
        for chunk in stream:
            collected[chunk.index] += chunk.token_ids
            two.generate([chunk.index], SamplingParams(max_tokens=1))
    assert collected == [solo_tokens(p, 30, ends=frozenset()) for p in prompts]


def test_threads_share_one_engine() -> None:
    prompts = [prompts_of(6, 7, seed=s) for s in range(4)]
    with running(max_num_seqs=5) as llm, ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda batch: ids(llm.generate(batch, LONG)), prompts))
    assert results == [[solo_tokens(p, 30, ends=frozenset()) for p in batch] for batch in prompts]


def test_close_is_idempotent_and_a_closed_engine_says_so() -> None:
    llm = toy_llm()
    llm.close()
    llm.close()
    from deepinfer_core.errors import EngineError

    with pytest.raises(EngineError, match="the engine is closed"):
        llm.generate("a")


def test_times_count_steps_and_tokens() -> None:
    with running() as llm:
        llm.generate(prompts_of(2, 8), SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
        record = llm.times.as_record()
    assert record["prefill_tokens"] == 16
    assert record["decode_tokens"] == 8
    assert record["steps"] >= 5
    assert all(record[phase] > 0 for phase in ("schedule", "pack", "bind", "forward", "logits", "sample", "commit"))
