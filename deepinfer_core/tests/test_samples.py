"""Several samples of one prompt: the tokens of as many requests, whatever happens to one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from engine_toys import Faulty, ToyModel, ToySampler, check_idle, ids, prompts_of, small_pool, solo_tokens, toy_llm

from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.requests.outputs import RequestOutput
from deepinfer_core.requests.seeds import mix, request_seed, sample_seed

G = 0x9E3779B97F4A7C15
PARAMS = SamplingParams(temperature=1, max_tokens=12, seed=9, ignore_eos=True)


def tokens(output: RequestOutput) -> list[list[int]]:
    return [list(completion.token_ids) for completion in output.outputs]


def separate(llm: LLM, prompt: list[int], params: SamplingParams, seeds: list[int]) -> list[list[int]]:
    """The same as requests of their own."""
    each = [params.updated({"n": 1, "seed": seed}) for seed in seeds]
    return ids(llm.generate([prompt] * len(seeds), each))


def test_mix_is_the_hash_of_the_specification() -> None:
    assert mix(0) == 0xE220A8397B1DCDAF  # key(0, 0, 0) of spec/sampling.md 2.4
    assert request_seed(0, 0) == mix(0)
    assert request_seed(0, 1) == mix(G)
    assert sample_seed(7, 0) == 7
    assert sample_seed(2**64 - 1, 1) == mix(mix(2**64 - 1) + 1)


def test_samples_of_neighbouring_seeds_share_no_seed() -> None:
    made = {sample_seed(seed, sample) for seed in range(40, 60) for sample in range(8)}
    assert len(made) == 20 * 8


@pytest.mark.parametrize("max_tokens", [1, 2, 12])
@pytest.mark.parametrize("settings", [{}, {"max_chunk": 3}, small_pool(12, 2), small_pool(40, 3)], ids=str)
def test_samples_equal_requests_with_their_seeds(settings: dict[str, object], max_tokens: int) -> None:
    prompts = prompts_of(3, 9, seed=4)
    params = PARAMS.updated({"n": 5, "max_tokens": max_tokens})
    with toy_llm(**settings) as llm:
        outputs = llm.generate(prompts, params)
        check_idle(llm)
        for prompt, output in zip(prompts, outputs, strict=True):
            seeds = [completion.seed for completion in output.outputs]
            assert seeds == [9, *(sample_seed(9, i) for i in range(1, 5))]
            assert tokens(output) == separate(llm, prompt, params, seeds)
            assert [completion.index for completion in output.outputs] == [0, 1, 2, 3, 4]


def test_first_sample_is_the_request_without_others() -> None:
    (prompt,) = prompts_of(1, 9)
    with toy_llm(seed=3) as llm:
        (many,) = llm.generate([prompt], SamplingParams(max_tokens=6, n=3))
        (one,) = llm.generate([prompt], SamplingParams(max_tokens=6))
    assert (many.token_ids, many.seed, many.text) == (one.token_ids, one.seed, one.text)


@pytest.mark.parametrize("length", range(1, 14))
def test_greedy_samples_are_all_the_plain_model(length: int) -> None:
    (prompt,) = prompts_of(1, length, seed=length)
    with toy_llm() as llm:
        (output,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, n=3))
        check_idle(llm)
    assert tokens(output) == [solo_tokens(prompt, 9, ends=frozenset())] * 3


def test_samples_end_at_their_own_stop() -> None:
    (prompt,) = prompts_of(1, 5)
    with toy_llm() as llm:
        (free,) = llm.generate([prompt], PARAMS.updated({"n": 3}))
        stop = free.outputs[1].token_ids[4]
        (output,) = llm.generate([prompt], PARAMS.updated({"n": 3, "stop_token_ids": [stop]}))
        check_idle(llm)
    for cut, whole in zip(tokens(output), tokens(free), strict=True):
        end = whole.index(stop) + 1 if stop in whole else len(whole)
        assert cut == whole[:end]
    assert output.outputs[1].finish_detail == "stop_token"


def test_stream_names_the_sample_and_ends_each_once() -> None:
    prompts = prompts_of(2, 5)
    params = [PARAMS.updated({"n": 3}), PARAMS]
    with toy_llm() as llm:
        whole = llm.generate(prompts, params)
        grown: dict[tuple[int, int], list[int]] = {}
        ended: list[tuple[int, int]] = []
        results = {}
        with llm.stream(prompts, params) as stream:
            for chunk in stream:
                grown.setdefault((chunk.index, chunk.sample), []).extend(chunk.token_ids)
                if chunk.completion is not None:
                    ended.append((chunk.index, chunk.sample))
                    assert list(chunk.completion.token_ids) == grown[chunk.index, chunk.sample]
                if chunk.output is not None:
                    assert chunk.index not in results
                    results[chunk.index] = chunk.output
        check_idle(llm)
    assert sorted(ended) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert [tokens(results[i]) for i in range(2)] == [tokens(output) for output in whole]


@pytest.mark.parametrize("after", [0, 1, 4])
def test_cancel_ends_every_sample_of_the_prompt_and_no_other(after: int) -> None:
    prompts = prompts_of(2, 9)
    params = PARAMS.updated({"n": 3})
    with toy_llm(max_chunk=4) as llm:
        want = llm.generate(prompts, params)
        results = {}
        ends = []
        seen = 0
        with llm.stream(prompts, params) as stream:
            if after == 0:
                stream.cancel(0)
            for chunk in stream:
                seen += chunk.index == 0 and bool(chunk.token_ids)
                if chunk.index == 0 and seen == after and not chunk.finished:
                    stream.cancel(0)
                if chunk.completion is not None:
                    ends.append((chunk.index, chunk.sample))
                if chunk.output is not None:
                    results[chunk.index] = chunk.output
        check_idle(llm)
    assert sorted(ends) == [(index, sample) for index in range(2) for sample in range(3)]
    assert [completion.finish_reason for completion in results[0].outputs] == ["abort"] * 3
    assert tokens(results[1]) == tokens(want[1])


def test_cancel_while_the_prompt_runs_ends_the_waiting_samples() -> None:
    (prompt,) = prompts_of(1, 40)
    with toy_llm(max_chunk=4) as llm:
        run = llm.run(iter([_input(prompt, PARAMS.updated({"n": 4}))]), streaming=True)
        run._feed()
        llm._engine.step()
        assert llm._engine.num_live == 4
        run.cancel(0)
        ended = list(run)
        check_idle(llm)
    assert [(request.sample, request.finish_reason) for request in ended] == [
        (1, "abort"),
        (2, "abort"),
        (3, "abort"),
        (0, "abort"),
    ]


def test_bad_row_ends_its_sample_and_leaves_the_others() -> None:
    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        logits = go()
        if len(logits) == 3 and call == 5:
            logits[1, 5] = np.nan
        return logits

    (prompt,) = prompts_of(1, 9)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, n=3)
    with toy_llm(parts={"model": Faulty(ToyModel(), fault, "logits")}) as llm:
        (output,) = llm.generate([prompt], params)
        check_idle(llm)
    assert sorted(completion.finish_reason for completion in output.outputs) == ["engine", "length", "length"]
    assert not output.ok
    want = solo_tokens(prompt, 12, ends=frozenset())
    for completion in output.outputs:
        assert list(completion.token_ids) == want[: len(completion.token_ids)]
        assert (completion.error is None) == (completion.finish_reason == "length")


def test_fault_while_the_prompt_runs_leaves_the_other_samples() -> None:
    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        if call == 2:
            raise RuntimeError("boom")
        return go()

    (prompt,) = prompts_of(1, 9)
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, n=3)
    with toy_llm(parts={"model": Faulty(ToyModel(), fault, "forward")}, max_chunk=4) as llm:
        (output,) = llm.generate([prompt], params)
        check_idle(llm)
    assert [completion.finish_reason for completion in output.outputs] == ["engine", "length", "length"]
    assert tokens(output)[1:] == [solo_tokens(prompt, 5, ends=frozenset())] * 2


def test_prompt_that_never_fits_ends_all_samples_with_one_error() -> None:
    prompts = [*prompts_of(1, 40), *prompts_of(1, 5)]
    with toy_llm(**small_pool(8, 2)) as llm:
        bad, good = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, n=3))
        check_idle(llm)
    assert [completion.finish_reason for completion in bad.outputs] == ["too_long"] * 3
    assert len({id(completion.error) for completion in bad.outputs}) == 1
    assert tokens(good) == [solo_tokens(prompts[1], 3, ends=frozenset())] * 3


def test_refused_prompt_has_all_its_completions() -> None:
    with toy_llm() as llm:
        (output,) = llm.generate([[]], PARAMS.updated({"n": 3}))
    assert [completion.finish_reason for completion in output.outputs] == ["input"] * 3
    assert output.error is not None


def test_samples_count_against_the_places_of_a_call() -> None:
    read = 0

    def source() -> Iterator[list[int]]:
        nonlocal read
        for i in range(100):
            read += 1
            yield [i]

    params = PARAMS.updated({"n": 5})
    with toy_llm(max_num_seqs=6) as llm, llm.stream(source(), params) as stream:
        next(stream)
        assert llm._engine.num_live <= 12
        assert read <= 3  # two that fit into twelve places, and one that waits for room


def test_more_samples_than_places_still_run() -> None:
    (prompt,) = prompts_of(1, 5)
    with toy_llm(max_num_seqs=2) as llm:
        outputs = llm.generate([prompt, prompt], PARAMS.updated({"n": 9}))
        check_idle(llm)
        seeds = [completion.seed for completion in outputs[0].outputs]
        assert tokens(outputs[0]) == tokens(outputs[1]) == separate(llm, prompt, PARAMS, seeds)


def test_interrupt_keeps_what_each_sample_has() -> None:
    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        if call == 4:
            raise KeyboardInterrupt
        return go()

    (prompt,) = prompts_of(1, 9)
    with toy_llm(parts={"sampler": Faulty(ToySampler(), fault, "sample")}) as llm:
        with pytest.raises(KeyboardInterrupt) as stopped:
            llm.generate([prompt], PARAMS.updated({"n": 3}))
        check_idle(llm)
        (partial,) = stopped.value.partial  # type: ignore[attr-defined]
        (whole,) = llm.generate([prompt], PARAMS.updated({"n": 3}))
    for cut, full in zip(partial.outputs, whole.outputs, strict=True):
        assert cut.finish_reason == "abort"
        assert 1 <= len(cut.token_ids) < 12
        assert cut.token_ids == full.token_ids[: len(cut.token_ids)]


def test_engine_that_breaks_ends_waiting_samples_too(monkeypatch: pytest.MonkeyPatch) -> None:
    (prompt,) = prompts_of(1, 40)
    with toy_llm(max_chunk=4) as llm:
        core = llm.built.engine.core
        real = core.schedule_local
        calls = iter(range(100))

        def schedule() -> Any:
            if next(calls) == 2:
                raise RuntimeError("broken")
            return real()

        monkeypatch.setattr(core, "schedule_local", schedule)
        (output,) = llm.generate([prompt], PARAMS.updated({"n": 3}))
    assert [completion.finish_reason for completion in output.outputs] == ["engine"] * 3


def _input(prompt: list[int], params: SamplingParams) -> Any:
    from deepinfer_core.requests.prompts import PromptInput

    return PromptInput(tuple(prompt), params)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9, 17])
def test_prompt_is_computed_once_for_all_samples(length: int, overlap: bool) -> None:
    (prompt,) = prompts_of(1, length, seed=length)
    params = PARAMS.updated({"n": 6})
    with toy_llm(overlap=overlap) as llm:
        (output,) = llm.generate([prompt], params)
        assert llm.times.prefill_tokens == length
        assert tokens(output) == separate(llm, prompt, params, [completion.seed for completion in output.outputs])
        check_idle(llm)


def test_samples_without_a_slot_compute_the_prompt_again() -> None:
    (prompt,) = prompts_of(1, 9)
    params = PARAMS.updated({"n": 4})
    with toy_llm(max_num_seqs=2) as llm:
        (output,) = llm.generate([prompt], params)
        assert llm.times.prefill_tokens > 9
        assert tokens(output) == separate(llm, prompt, params, [completion.seed for completion in output.outputs])
        check_idle(llm)


def test_first_sample_that_ends_at_once_leaves_the_others_to_run() -> None:
    (prompt,) = prompts_of(1, 9)
    with toy_llm() as llm:
        (free,) = llm.generate([prompt], PARAMS.updated({"n": 4}))
        stop = free.outputs[0].token_ids[0]
        (output,) = llm.generate([prompt], PARAMS.updated({"n": 4, "stop_token_ids": [stop]}))
        check_idle(llm)
    assert len(output.outputs[0].token_ids) == 1
    for cut, whole in zip(tokens(output), tokens(free), strict=True):
        assert cut == whole[: whole.index(stop) + 1 if stop in whole else len(whole)]
