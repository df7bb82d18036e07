"""A fault in any call while another step is in flight: it ends the requests of its own step and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from engine_toys import Faulty, check_idle, ids, prompts_of, small_pool, solo_tokens, toy_llm
from slow_device import Device, QueuedModel, slow_parts

from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams

pytestmark = pytest.mark.usefixtures("overlap")

ENDLESS: frozenset[int] = frozenset()
Fault = Callable[[str, int, Any], Any]
CALLS = {
    "forward": ("model", "model.forward"),
    "logits": ("model", "model.logits"),
    "sample": ("sampler", "sampler.sample"),
    "record_event": ("backend", "backend.record_event"),
    "wait": ("backend", "backend.wait"),
    "to_host": ("backend", "sampler.sample"),
}


@contextmanager
def faulty_llm(method: str, fault: Fault, **settings: Any) -> Iterator[LLM]:
    parts = slow_parts()
    part = CALLS[method][0]
    parts[part] = Faulty(parts[part], fault, method)
    with toy_llm(parts=parts, **settings) as llm:
        yield llm


def raise_at(number: int) -> Fault:
    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        if call == number:
            raise RuntimeError("boom")
        return go()

    return fault


def length(n: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)


@pytest.mark.parametrize("step", [1, 2, 3, 5])
@pytest.mark.parametrize("method", list(CALLS))
def test_requests_keep_what_the_steps_before_gave_them(method: str, step: int) -> None:
    """The same at both depths: the step before the faulty one is committed, then its requests end."""
    prompts = prompts_of(3, 6, seed=31)
    number = 3 * step - 1 if method == "to_host" else step  # three arrays come from the device in each step
    with faulty_llm(method, raise_at(number)) as llm:
        outputs = llm.generate(prompts, length(8))
        check_idle(llm)
        again = llm.generate(prompts, length(8))
        check_idle(llm)
    want = [solo_tokens(p, 8, ends=ENDLESS) for p in prompts]
    assert [output.finish_reason for output in outputs] == ["engine"] * 3
    assert ids(outputs) == [tokens[: step - 1] for tokens in want]
    for output in outputs:
        assert output.error is not None
        assert output.error.details["op"] == CALLS[method][1]
        assert output.error.details["step_id"] == step
    assert ids(again) == want


@pytest.mark.parametrize("number", [1, 2, 4])
def test_fault_of_the_feed_is_the_backends(number: int, overlap: bool) -> None:
    parts = slow_parts()
    device = parts["backend"]
    whole, calls = device.ops["meta.feed_tokens"], []

    def feed(*args: Any, **options: Any) -> Any:
        calls.append(0)
        if len(calls) == number:
            raise RuntimeError("boom")
        return whole(*args, **options)

    device.ops = {"meta.feed_tokens": feed}
    prompts = prompts_of(3, 6, seed=32)
    with toy_llm(parts=parts) as llm:
        outputs = llm.generate(prompts, length(8))
        check_idle(llm)
    want = [solo_tokens(p, 8, ends=ENDLESS) for p in prompts]
    if not overlap:
        assert not calls
        assert ids(outputs) == want
        return
    # Step 1 is the prompts, step 2 the first decode step, which continues a committed one.
    assert ids(outputs) == [tokens[: number + 1] for tokens in want]
    for output in outputs:
        assert output.error is not None
        assert output.error.what.startswith("meta.feed_tokens of toy (acme-backend 0.1) failed in step ")


@pytest.mark.parametrize("method", ["forward", "logits", "sample", "record_event"])
def test_request_that_ends_in_the_step_before_is_not_touched(method: str) -> None:
    prompts = prompts_of(3, 6, seed=33)
    with faulty_llm(method, raise_at(4)) as llm:
        outputs = llm.generate(prompts, [length(3), length(8), length(3)])
        check_idle(llm)
    assert [output.finish_reason for output in outputs] == ["length", "engine", "length"]
    want = [solo_tokens(p, 3, ends=ENDLESS) for p in prompts]
    assert ids(outputs) == want


@pytest.mark.parametrize("method", list(CALLS))
def test_requests_that_wait_for_a_place_run_after_the_fault(method: str) -> None:
    prompts = prompts_of(6, 6, seed=34)
    with faulty_llm(method, raise_at(8 if method == "to_host" else 3), max_num_seqs=2) as llm:
        outputs = llm.generate(prompts, length(6))
        check_idle(llm)
    assert [output.finish_reason for output in outputs] == ["engine"] * 2 + ["length"] * 4
    assert ids(outputs)[2:] == [solo_tokens(p, 6, ends=ENDLESS) for p in prompts[2:]]


def test_fault_of_the_device_shows_where_the_host_waits_and_ends_what_builds_on_it(overlap: bool) -> None:
    """The work of step 3 fails on the device. Step 4 was launched with its tokens."""
    parts = slow_parts()
    device: Device = parts["backend"]

    class Breaking(QueuedModel):
        def forward(self, inputs: Any, caches: Any) -> Any:
            out = super().forward(inputs, caches)
            if device.log.count("forward") + device.log.count("forward prompt") == 3:

                def fail() -> None:
                    raise RuntimeError("device lost a page")

                device.queue[-1] = fail
            return out

    parts["model"] = Breaking(device)
    prompts = prompts_of(2, 6, seed=35)
    with toy_llm(parts=parts) as llm:
        outputs = llm.generate(prompts, length(8))
        check_idle(llm)
        again = llm.generate(prompts, length(8))
        check_idle(llm)
    want = [solo_tokens(p, 8, ends=ENDLESS) for p in prompts]
    assert ids(outputs) == [tokens[:2] for tokens in want]
    for output in outputs:
        assert output.error is not None
        assert output.error.what.startswith("backend.wait of toy (acme-backend 0.1) failed in step 3")
        assert "device lost a page" in output.error.reason
    assert ids(again) == want


def test_result_that_the_core_refuses_ends_its_step_while_the_next_one_runs() -> None:
    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        sampled = go()
        if call == 3:
            sampled.sampled_logprob = [1.0] * len(sampled.sampled_ids)  # a log-probability above 0
        return sampled

    prompts = prompts_of(3, 6, seed=36)
    with faulty_llm("sample", fault, max_num_seqs=2) as llm:
        outputs = llm.generate(prompts, length(6))
        check_idle(llm)
    want = [solo_tokens(p, 6, ends=ENDLESS) for p in prompts]
    assert ids(outputs) == [want[0][:2], want[1][:2], want[2]]
    assert "sampled_logprob" in str(outputs[0].error)


@pytest.mark.parametrize("number", [1, 2, 3, 5])
@pytest.mark.parametrize("method", ["forward", "sample", "wait", "to_host"])
def test_exit_in_any_phase_leaves_no_step_open(method: str, number: int) -> None:
    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        if call == number:
            raise SystemExit(3)
        return go()

    prompts = prompts_of(2, 6, seed=37)
    with faulty_llm(method, fault) as llm:
        with pytest.raises(SystemExit):
            llm.generate(prompts, length(8))
        check_idle(llm)
        assert not llm.built.engine._open
        assert ids(llm.generate(prompts, length(8))) == [solo_tokens(p, 8, ends=ENDLESS) for p in prompts]


@pytest.mark.parametrize("seed", range(10))
def test_random_faults_in_all_calls_leave_nothing_behind(seed: int) -> None:
    draw = random.Random(seed)

    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        if draw.random() < 0.02:
            raise RuntimeError("boom")
        return go()

    parts = slow_parts()
    for part in ("model", "sampler", "backend"):
        methods = [method for method, (owner, _) in CALLS.items() if owner == part]
        parts[part] = Faulty(parts[part], fault, *methods, *(("bind_inputs",) if part == "backend" else ()))
    prompts = [prompts_of(1, draw.randrange(1, 25), seed=100 * seed + i)[0] for i in range(30)]
    params = [length(draw.randrange(1, 20)) for _ in prompts]
    done: dict[int, Any] = {}
    with toy_llm(parts=parts, **small_pool(18, 4), max_chunk=draw.choice([3, 8, None])) as llm:
        with llm.stream(prompts, params) as stream:
            for chunk in stream:
                if draw.random() < 0.05:
                    stream.cancel(draw.randrange(30))
                if chunk.output is not None:
                    done[chunk.index] = chunk.output
        check_idle(llm)
        stats = llm.built.engine.core.stats()
        assert stats.last_step == stats.committed == stats.done
        assert (stats.unfinished, stats.zombie, stats.queued_events) == (0, 0, 0)
        # A prompt that was cancelled before its turn was never submitted.
        assert 30 - sum(output.finish_reason == "abort" for output in done.values()) <= sum(stats.finished.values())
    assert sorted(done) == list(range(30))
    assert {output.finish_reason for output in done.values()} <= {"length", "abort", "engine"}
    for index, output in done.items():
        want = solo_tokens(prompts[index], params[index].max_tokens, ends=ENDLESS)
        assert list(output.token_ids) == want[: len(output.token_ids)]
        assert output.finish_reason != "length" or list(output.token_ids) == want
