"""Prompts that begin alike, with the prefix cache on: the tokens of the plain model, and fewer of them computed.

The toy model's window holds token ids, which no earlier window changes. So a hit is exact here, whatever it skips, and
a row that is stored, shared or replayed in the wrong place changes the tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import numpy as np
import pytest
from engine_toys import (
    BLOCK,
    RING,
    TOY_HINTS,
    WINDOW,
    Faulty,
    ToyModel,
    check_idle,
    ids,
    prompts_of,
    small_pool,
    solo_tokens,
    toy_llm,
)

from deepinfer_core.errors import ConfigError, EngineError, NotSupported
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@contextmanager
def caching(**settings: object) -> Iterator[LLM]:
    llm = toy_llm(prefix_cache=True, **settings)
    try:
        yield llm
        check_idle(llm)
    finally:
        llm.close()


def plain(prompt: list[int], count: int = 6) -> list[int]:
    return solo_tokens(prompt, count, ends=frozenset())


def saved(shared: int, length: int) -> int:
    """Tokens that a prompt need not compute whose first ``shared`` ones are cached."""
    return max(0, min(shared, length - 1) // BLOCK * BLOCK - WINDOW)


@pytest.mark.parametrize("chunk", [1, 3, 8, None])
@pytest.mark.parametrize("shared", [0, 5, 6, 7, 8, 9, 12, 23, 24, 40])
def test_shared_beginning_is_computed_once_and_changes_no_token(shared: int, chunk: int | None) -> None:
    (prefix,) = prompts_of(1, shared, seed=2)
    first, second, third = ([*prefix, *tail] for tail in prompts_of(3, 7, seed=3))
    with caching(max_chunk=chunk) as llm:
        outputs = [llm.generate([prompt], GREEDY)[0] for prompt in (first, second, third)]
        computed = llm.times.prefill_tokens
        report = llm.prefix_cache_report
    assert ids(outputs) == [plain(prompt) for prompt in (first, second, third)]
    want = saved(shared, shared + 7)
    assert [output.cached_tokens for output in outputs] == [0, want, want]
    assert [output.replayed_tokens for output in outputs] == [0, WINDOW if want else 0, WINDOW if want else 0]
    assert computed == 3 * (shared + 7) - 2 * want
    assert report.saved_tokens == 2 * want
    assert report.queries == 3
    assert llm.prefix_cache_report == report  # the engine is closed


def test_repeated_prompt_hits_all_but_its_last_block() -> None:
    (prompt,) = prompts_of(1, 46)
    with caching() as llm:
        outputs = [llm.generate([prompt], GREEDY)[0] for _ in range(4)]
    assert [output.cached_tokens for output in outputs] == [0, *[44 - WINDOW] * 3]
    assert ids(outputs) == [plain(prompt)] * 4


def test_answer_is_found_by_the_prompt_that_continues_it() -> None:
    (prompt,) = prompts_of(1, 20)
    with caching() as llm:
        (first,) = llm.generate([prompt], GREEDY.updated({"max_tokens": 13}))
        longer = [*prompt, *first.token_ids, 5]
        (second,) = llm.generate([longer], GREEDY)
    assert second.cached_tokens == 32 - WINDOW  # the last token of an answer was never computed
    assert list(second.token_ids) == plain(longer)


def test_cache_is_off_unless_asked_for() -> None:
    (prompt,) = prompts_of(1, 46)
    with toy_llm() as llm:
        outputs = [llm.generate([prompt], GREEDY)[0] for _ in range(2)]
        assert llm.prefix_cache_report.saved_tokens == 0
        with pytest.raises(ConfigError, match="prefix_cache is off"):
            llm.reset_prefix_cache()
    assert [output.cached_tokens for output in outputs] == [0, 0]


@pytest.mark.parametrize("after", [0, 1, 10, 19])
def test_reset_in_the_middle_of_a_run_changes_no_token(after: int) -> None:
    (prompt,) = prompts_of(1, 30)
    with caching() as llm:
        llm.generate([prompt], GREEDY)
        count = 0
        with llm.stream([prompt], GREEDY.updated({"max_tokens": 20})) as stream:
            if after == 0:
                llm.reset_prefix_cache()
            for chunk in stream:
                count += len(chunk.token_ids)
                if count == after:
                    llm.reset_prefix_cache()
                if chunk.output is not None:
                    output = chunk.output
        (late,) = llm.generate([prompt], GREEDY)
    assert list(output.token_ids) == plain(prompt, 20)
    assert late.cached_tokens == (0 if after else saved(30, 30))  # by the run after the reset
    assert list(late.token_ids) == plain(prompt)


def test_blocks_of_a_small_pool_are_evicted_and_found_no_more() -> None:
    first, *others = prompts_of(3, 16)
    with caching(**small_pool(6, 1)) as llm:
        outputs = [llm.generate([prompt], GREEDY)[0] for prompt in (first, *others, first)]
        evicted = llm.prefix_cache_report.evicted_blocks
    assert ids(outputs) == [plain(prompt) for prompt in (first, *others, first)]
    assert evicted > 0
    assert outputs[-1].cached_tokens == 0


@pytest.mark.parametrize("chunk", [4, None])
def test_many_prompts_with_one_beginning_on_a_tiny_pool(chunk: int | None) -> None:
    (prefix,) = prompts_of(1, 18, seed=5)
    prompts = [[*prefix, *tail] for tail in prompts_of(64, 5, seed=6)]
    with caching(**small_pool(24, 4), max_chunk=chunk) as llm:
        outputs = llm.generate(prompts, GREEDY.updated({"max_tokens": 12}))
        assert llm.prefix_cache_report.saved_tokens > 0
    assert ids(outputs) == [plain(prompt, 12) for prompt in prompts]


@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_with_common_beginnings_keeps_its_tokens(seed: int) -> None:
    draw = random.Random(seed)
    print(f"seed {seed}")
    bases = prompts_of(3, 40, seed=seed + 10)
    prompts = []
    for _ in range(60):
        base = draw.choice(bases)[: draw.randint(0, 40)]
        prompts.append([*base, *[draw.randrange(256) for _ in range(draw.randint(1, 9))]])
    params = [
        SamplingParams(temperature=0, max_tokens=draw.randint(1, 20), ignore_eos=True, n=draw.choice((1, 1, 3)))
        for _ in prompts
    ]
    cancelled = set(draw.sample(range(60), 6))
    results = {}
    settings = {**small_pool(draw.choice((30, 60)), 5), "max_chunk": draw.choice((3, 8, None))}
    with caching(**settings) as llm, llm.stream(prompts, params) as stream:
        for chunk in stream:
            if chunk.output is not None:
                results[chunk.index] = chunk.output
            elif chunk.index in cancelled:
                stream.cancel(chunk.index)
            elif draw.random() < 0.02:
                with suppress(EngineError):  # refused while blocks are shared
                    llm.reset_prefix_cache()
    for index, output in results.items():
        want = plain(prompts[index], params[index].max_tokens)
        for completion in output.outputs:
            got = list(completion.token_ids)
            assert got == (want[: len(got)] if index in cancelled else want)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_step_that_failed_offers_none_of_its_blocks(number: int, overlap: bool) -> None:
    """The blocks of the failed step hold what was there before."""

    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        if call == number:
            raise RuntimeError("boom")
        return go()

    (prompt,) = prompts_of(1, 30)
    with caching(parts={"model": Faulty(ToyModel(), fault, "forward")}, max_chunk=12, overlap=overlap) as llm:
        outputs = [llm.generate([prompt], GREEDY)[0] for _ in range(3)]
    assert outputs[0].finish_reason == "engine"
    assert ids(outputs[1:]) == [plain(prompt)] * 2


def test_row_without_a_token_does_not_offer_the_end_of_its_prompt() -> None:
    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        logits = go()
        if call == 1:
            logits[0, 5] = np.nan
        return logits

    (prompt,) = prompts_of(1, 30)
    with caching(parts={"model": Faulty(ToyModel(), fault, "logits")}) as llm:
        outputs = [llm.generate([prompt], GREEDY)[0] for _ in range(3)]
    assert [output.finish_detail for output in outputs] == ["nan_logits", "max_tokens", "max_tokens"]
    assert [output.cached_tokens for output in outputs] == [0, 0, saved(30, 30)]
    assert ids(outputs[1:]) == [plain(prompt)] * 2


def test_queued_requests_that_would_hit_give_everything_back_when_cancelled() -> None:
    (prompt,) = prompts_of(1, 30)
    with caching(max_num_seqs=2) as llm:
        llm.generate([prompt], GREEDY)
        stats = llm.built.engine.core.stats()
        before = (stats.main.free, stats.main.cached, stats.swa.free)
        for _ in range(100):
            run = llm.run(iter(_inputs(prompt, 10)), streaming=False)
            run._window = 10
            run._feed()
            assert len(run.stop()) == 10
        check_idle(llm)
        stats = llm.built.engine.core.stats()
    assert (stats.main.free, stats.main.cached, stats.swa.free) == before


def test_setting_under_which_nothing_can_hit_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError) as caught:
        toy_llm(prefix_cache=True, max_model_len=8)
    assert caught.value.what == "prefix_cache is on, but no prompt can ever hit"
    assert caught.value.reason == (
        "with blocks of 4 tokens and a window of 6 the shortest prompt that saves anything has 9 tokens, "
        "and the longest that runs has 7"
    )
    with pytest.raises(ConfigError, match="no prompt can ever hit"):
        toy_llm(prefix_cache=True, kv_memory=3 * BLOCK * 8 + 2 * RING * 8, max_num_seqs=1)
    with caching(max_model_len=10) as llm:
        (prompt,) = prompts_of(1, 9)
        assert [llm.generate([prompt], GREEDY)[0].cached_tokens for _ in range(2)] == [0, 2]


def test_model_that_cannot_go_on_at_a_prefix_is_refused() -> None:
    hints = attrs.evolve(TOY_HINTS, prefix_replay=False)
    with pytest.raises(NotSupported, match="cannot go on at a reused prefix"):
        toy_llm(prefix_cache=True, parts={"hints": hints})


@pytest.mark.parametrize("length", [8, 9, 12, 13])
def test_prompts_that_differ_in_one_token_do_not_meet(length: int) -> None:
    (prompt,) = prompts_of(1, length + 8)
    with caching() as llm:
        for place in range(length):
            other = [*prompt]
            other[place] ^= 1
            assert ids([llm.generate([p], GREEDY)[0] for p in (prompt, other)]) == [plain(prompt), plain(other)]


def test_record_says_what_was_saved() -> None:
    (prompt,) = prompts_of(1, 46)
    with caching() as llm:
        llm.generate([prompt], GREEDY)
        record = llm.generate([prompt], GREEDY)[0].as_record()
    assert (record["cached_tokens"], record["replayed_tokens"]) == (44 - WINDOW, WINDOW)


def _inputs(prompt: list[int], count: int) -> list[object]:
    from deepinfer_core.requests.prompts import PromptInput

    return [PromptInput(tuple(prompt), GREEDY)] * count
