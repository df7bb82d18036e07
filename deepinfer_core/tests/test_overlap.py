"""Two steps in flight: the order of the phases, what overlaps, what is committed when, and the same tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import attrs
import pytest
from engine_toys import (
    EOS,
    TOY_HINTS,
    ToyBackend,
    byte_tokenizer,
    check_idle,
    ids,
    prompts_of,
    small_pool,
    solo_tokens,
    toy_llm,
)
from slow_device import ReuseWatch, slow_parts

from deepinfer_core.errors import EngineError, UnsupportedOp
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
ENDLESS: frozenset[int] = frozenset()


@contextmanager
def slow_llm(**settings: Any) -> Iterator[tuple[LLM, Any]]:
    parts = slow_parts()
    with toy_llm(parts=parts, **settings) as llm:
        yield llm, parts["backend"]
        check_idle(llm)


def log_of(overlap: bool) -> list[str]:
    with slow_llm(overlap=overlap) as (llm, device):
        llm.generate([[1, 2]], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    return [line.split()[0] for line in device.log if line != "forward prompt"]


def test_step_is_launched_before_the_one_before_is_waited_for() -> None:
    prompt, last = ["sample", "event", "wait"], ["wait"]
    step = ["forward", "wait", "sample", "event"]
    assert log_of(True) == [*prompt, "forward", "sample", "event", *step, *step, *last]


def test_without_overlap_each_step_is_waited_for_before_the_next_one() -> None:
    assert log_of(False) == [*["sample", "event", "wait"], *["forward", "sample", "event", "wait"] * 3]


@pytest.mark.usefixtures("overlap")
@pytest.mark.parametrize("seed", range(4))
def test_slow_device_gives_the_tokens_of_the_plain_model(seed: int) -> None:
    draw = random.Random(seed)
    prompts = [prompts_of(1, draw.randrange(1, 20), seed=10 * seed + i)[0] for i in range(12)]
    params = [SamplingParams(temperature=0, max_tokens=draw.randrange(1, 25)) for _ in prompts]
    with slow_llm(max_num_seqs=draw.choice([1, 3, 5]), max_chunk=draw.choice([None, 4])) as (llm, _):
        outputs = llm.generate(prompts, params)
    assert ids(outputs) == [solo_tokens(p, q.max_tokens) for p, q in zip(prompts, params, strict=True)]


@pytest.mark.usefixtures("overlap")
@pytest.mark.parametrize("blocks", [9, 14, 30])
def test_unit_has_no_new_owner_before_the_step_that_used_it_is_complete(blocks: int) -> None:
    prompts = prompts_of(10, 7, seed=21)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (3, 12, 1, 7, 2, 9, 5, 4, 11, 6)]
    with slow_llm(**small_pool(blocks, 2)) as (llm, device):
        engine = llm.built.engine
        watch = engine._chooser = ReuseWatch(engine._chooser, device)
        outputs = llm.generate(prompts, params)
    assert ids(outputs) == [solo_tokens(p, q.max_tokens, ends=ENDLESS) for p, q in zip(prompts, params, strict=True)]
    assert watch.reused > 8


@pytest.mark.usefixtures("overlap")
@pytest.mark.parametrize("blocks", [9, 14])
def test_device_with_one_queue_may_reuse_units_at_once(blocks: int) -> None:
    """``stream_ordered_reuse``: a unit goes to the next launched step although the one before it still runs."""
    prompts = prompts_of(8, 7, seed=29)
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (3, 20, 1, 7, 30, 9, 5, 25)]
    parts = {**slow_parts(), "hints": attrs.evolve(TOY_HINTS, stream_ordered_reuse=True)}
    with toy_llm(parts=parts, **small_pool(blocks, 3)) as llm:
        outputs = llm.generate(prompts, params)
        check_idle(llm)
    for output, prompt, wanted in zip(outputs, prompts, params, strict=True):
        tokens = solo_tokens(prompt, wanted.max_tokens)
        assert list(output.token_ids) == tokens[: len(output.token_ids)]
        assert output.finish_reason == "too_long" or list(output.token_ids) == tokens
    assert sum(output.ok for output in outputs) >= 5


def test_watch_finds_a_unit_that_is_given_away_too_early() -> None:
    """The check of the check: steps are reported done before they have run."""
    with toy_llm(parts=(parts := slow_parts()), **small_pool(14, 2)) as llm:
        engine, device = llm.built.engine, parts["backend"]
        engine._chooser = ReuseWatch(engine._chooser, device)
        whole, taken = engine.core.step_done, engine.core.commit

        class Early:
            def __getattr__(self, name: str) -> Any:
                return getattr(core, name)

            def commit(self, step_id: int, sampled: Any) -> Any:
                events = taken(step_id, sampled)
                whole(engine._open[-1].step_id)
                return events

            def step_done(self, step_id: int) -> None:
                pass

        core = engine.core
        engine.core = Early()
        with pytest.raises(EngineError, match="the step loop failed"):
            llm.generate(prompts_of(30, 7), SamplingParams(temperature=0, max_tokens=40))
        assert engine.broken is not None
        assert "changed its owner" in str(engine.broken)
        engine.core = core


@pytest.mark.usefixtures("overlap")
def test_end_that_is_certain_costs_no_step_and_any_other_one_at_most_one(overlap: bool) -> None:
    prompts = prompts_of(6, 5, seed=22)
    with slow_llm() as (llm, _):
        llm.generate(prompts, PARAMS)
        assert llm.built.engine.core.stats().overrun_rows == 0
        stops = [
            SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, stop_token_ids=[solo_tokens(p, 4)[3]])
            for p in prompts
        ]
        outputs = llm.generate(prompts, stops)
        ended = sum(len(output.token_ids) < 8 for output in outputs)
        assert ended >= 5
        assert llm.built.engine.core.stats().overrun_rows == (ended if overlap else 0)


def test_flush_brings_the_tokens_that_are_on_their_way() -> None:
    prompts = prompts_of(2, 5, seed=23)
    with slow_llm() as (llm, device), llm.stream(prompts, PARAMS) as stream:
        engine = llm.built.engine
        assert len(next(stream).token_ids) == 1
        for _ in range(4):
            engine.step()
        requests = list(engine._live.values())
        assert [len(r.token_ids) for r in requests] == [4, 4]
        engine.flush()
        assert [len(r.token_ids) for r in requests] == [5, 5]
        assert device.ran == len(device.queue)
        engine.flush()  # nothing is left to do
        engine.core.check()
        outputs = [chunk.output for chunk in stream if chunk.output is not None]
    assert [list(o.token_ids) for o in sorted(outputs, key=lambda o: o.index)] == [
        solo_tokens(p, 8, ends=ENDLESS) for p in prompts
    ]


@pytest.mark.usefixtures("overlap")
@pytest.mark.parametrize("pause", [1, 2, 5, 6])
def test_pause_in_the_middle_of_a_run_loses_and_repeats_nothing(pause: int) -> None:
    prompts = prompts_of(3, 6, seed=24)
    with slow_llm() as (llm, device), llm.stream(prompts, PARAMS) as stream:
        engine, got = llm.built.engine, {}
        for _ in range(pause):
            engine.step()
        engine.flush()
        quiet = len(device.queue)
        engine.flush()
        assert len(device.queue) == quiet
        for chunk in stream:
            got.setdefault(chunk.index, []).extend(chunk.token_ids)
    assert got == {i: solo_tokens(p, 8, ends=ENDLESS) for i, p in enumerate(prompts)}


@pytest.mark.usefixtures("overlap")
def test_minimum_length_of_a_request_that_joins_is_counted_over_its_own_tokens() -> None:
    prompts = prompts_of(3, 5, seed=25)
    stop = solo_tokens(prompts[2], 3)[2]
    late = SamplingParams(temperature=0, max_tokens=12, min_tokens=6, stop_token_ids=[stop], ignore_eos=True)
    with slow_llm() as (llm, _):
        (alone,) = llm.generate([prompts[2]], late)
        with llm.stream(prompts[:2], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)) as stream:
            for _ in range(5):
                next(stream)
            (joined,) = llm.generate([prompts[2]], late)
            assert all(chunk.output is None or chunk.output.ok for chunk in stream)
    assert joined.token_ids == alone.token_ids
    assert stop not in joined.token_ids[:6]


@pytest.mark.usefixtures("overlap")
def test_stop_string_that_ends_while_a_step_is_in_flight_drops_what_comes_later() -> None:
    prompts = prompts_of(4, 6, seed=26)
    texts = [byte_tokenizer().decode(solo_tokens(p, 12, ends=ENDLESS)) for p in prompts]
    params = [
        SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=[text[4:6]] if len(text) > 6 else [])
        for text in texts
    ]
    with slow_llm() as (llm, _):
        outputs = llm.generate(prompts, params)
    for output, prompt in zip(outputs, prompts, strict=True):
        want = solo_tokens(prompt, 12, ends=ENDLESS)
        assert list(output.token_ids) == want[: len(output.token_ids)]
    assert sum(output.finish_detail == "stop_string" for output in outputs) >= 2


def test_last_request_that_stops_leaves_no_step_open() -> None:
    prompts = prompts_of(1, 5, seed=27)
    stop = solo_tokens(prompts[0], 3)[2]
    params = SamplingParams(temperature=0, max_tokens=50, stop_token_ids=[stop], ignore_eos=True)
    with slow_llm() as (llm, device):
        llm.generate(prompts, params)
        assert not llm.built.engine._open
        assert device.ran == len(device.queue)


def test_results_stay_alive_until_the_next_step_is_committed() -> None:
    with slow_llm() as (llm, _), llm.stream([[1, 2, 3]], PARAMS) as stream:
        next(stream)
        engine = llm.built.engine
        for _ in range(3):
            engine.step()
        kept = [record.step_id for record in engine._ring]
        (newest,) = [record.step_id for record in engine._open]
        assert kept == [newest - 2, newest - 1, newest]
        assert list(stream)


@pytest.mark.parametrize("seed", range(6))
def test_random_cancels_give_everything_back_and_leave_the_others_alone(seed: int) -> None:
    draw = random.Random(seed)
    prompts = [prompts_of(1, draw.randrange(1, 20), seed=100 * seed + i)[0] for i in range(25)]
    params = [SamplingParams(temperature=0, max_tokens=draw.randrange(1, 20), ignore_eos=True) for _ in prompts]
    done: dict[int, Any] = {}
    with slow_llm(**small_pool(16, 3), max_chunk=draw.choice([None, 4])) as (llm, device):
        engine = llm.built.engine
        engine._chooser = ReuseWatch(engine._chooser, device)
        with llm.stream(prompts, params) as stream:
            for chunk in stream:
                if draw.random() < 0.15:
                    stream.cancel(draw.randrange(25))
                if chunk.output is not None:
                    done[chunk.index] = chunk.output
    assert sorted(done) == list(range(25))
    for index, output in done.items():
        want = solo_tokens(prompts[index], params[index].max_tokens, ends=ENDLESS)
        assert list(output.token_ids) == want[: len(output.token_ids)]
        assert output.finish_reason in ("abort", "length")
        assert output.finish_reason == "abort" or list(output.token_ids) == want


def test_overlap_is_visible_in_the_times() -> None:
    with slow_llm() as (llm, _):
        llm.generate(prompts_of(2, 6), PARAMS)
        times = llm.times.as_record()
    assert times["steps"] == 8
    assert times["overlapped_steps"] == 6
    assert times["wait"] > 0


def test_backend_without_the_op_is_refused_with_the_way_out() -> None:
    class Bare(ToyBackend):
        ops = MappingProxyType({})

    with pytest.raises(UnsupportedOp, match=r"has no meta.feed_tokens, which two steps in flight need") as caught:
        toy_llm(parts={"backend": Bare()})
    assert "--no-overlap" in caught.value.remedy
    with toy_llm(parts={"backend": Bare()}, overlap=False) as llm:
        assert llm.generate([[1]], PARAMS)[0].ok


def test_end_token_is_not_followed_by_the_overrun_token() -> None:
    prompts = prompts_of(30, 4, seed=28)
    with slow_llm() as (llm, _):
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=60))
    assert ids(outputs) == [solo_tokens(p, 60) for p in prompts]
    assert any(output.token_ids[-1] == EOS for output in outputs)


@pytest.mark.parametrize("prefix_cache", [False, True], ids=["cold", "prefix cache"])
@pytest.mark.parametrize("seed", range(5))
def test_random_work_gives_the_same_with_and_without_overlap(seed: int, prefix_cache: bool) -> None:
    """Several samples of a prompt, sampled and greedy, chunks, pressure. With the prefix cache what hits depends on the
    time at which a prompt comes, and the toy's history does not."""
    draw = random.Random(seed)
    shared = prompts_of(1, 30, seed=seed)[0]
    prompts = [shared[: draw.randrange(1, 30)] + prompts_of(1, draw.randrange(1, 8), seed=i)[0] for i in range(10)]
    params = [
        SamplingParams(
            temperature=0 if prefix_cache else draw.choice([0, 1.0]),
            max_tokens=draw.randrange(1, 20),
            n=draw.choice([1, 1, 2, 4]),
            seed=draw.randrange(99),
        )
        for _ in prompts
    ]
    settings = {**small_pool(draw.choice([24, 40, 90]), draw.choice([2, 5])), "max_chunk": draw.choice([None, 4, 8])}
    results = []
    for overlap in (True, False):
        parts = slow_parts() if overlap else {}
        with toy_llm(parts=parts, overlap=overlap, prefix_cache=prefix_cache, **settings) as llm:
            outputs = llm.generate(prompts, params)
            check_idle(llm)
        assert all(output.ok for output in outputs)
        results.append([[sample.token_ids for sample in output.outputs] for output in outputs])
    assert results[0] == results[1]
    assert max(len(samples) for samples in results[0]) > 1
