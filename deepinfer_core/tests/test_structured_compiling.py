"""Compiling in worker threads: who waits, who does not, what a stuck worker means. Gates and a fake clock, no sleep."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest
from attrs import evolve
from engine_toys import check_idle, solo_tokens
from grammar_toys import FakeClock, Gates, grammar_llm

from deepinfer_core.engine import Engine
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.requests import admission
from deepinfer_core.requests.submission import submit
from deepinfer_core.structured import compiling, manager
from deepinfer_core.structured.compiling import CompileService
from deepinfer_core.structured.waiting import WaitingForGrammar

FREE = SamplingParams(temperature=0, max_tokens=6)
SLOW = SamplingParams(regex="slow", temperature=0, max_tokens=9)


@pytest.fixture
def gates():
    made = Gates()
    yield made
    made.engine.gate.set()  # whatever the test did, no worker stays


@pytest.fixture
def clock(monkeypatch):
    made = FakeClock()
    monkeypatch.setattr(compiling, "now", made)
    return made


@pytest.fixture
def cpus(monkeypatch):
    """Workers do not depend on the machine."""
    monkeypatch.setattr(manager, "usable_cpus", lambda: 64)


def gated_llm(gates: Gates, workers: int = 1, **settings: Any) -> LLM:
    return grammar_llm(gates, so_builder_cpus=workers, **settings)


def test_request_whose_grammar_compiles_does_not_hold_up_the_others(gates, overlap):
    with gated_llm(gates) as llm, llm.stream(["a", "b", "c"], [FREE, SLOW, FREE]) as stream:
        ended = []
        for chunk in stream:
            if chunk.finished:
                ended.append(chunk.index)
                if sorted(ended) == [0, 2]:
                    assert llm.built.engine.num_live == 1
                    gates.engine.gate.set()
                if chunk.index == 1:
                    assert chunk.output.text == "slow"
                else:
                    assert list(chunk.output.token_ids) == solo_tokens([257, b"abc"[chunk.index]], 6)
        check_idle(llm)
    assert ended[2] == 1


@pytest.mark.parametrize("promise", ["run", "off"])
def test_time_of_a_compile_decides_about_no_step_of_a_deterministic_run(gates, monkeypatch, promise):
    """``run``: nothing runs while a grammar compiles, and prompts start in their order. ``off`` waits for nobody."""
    started, steps, wait = [], [], WaitingForGrammar.wait
    monkeypatch.setattr(
        admission, "submit", lambda core, request: started.append(request.index) or submit(core, request)
    )
    params = [FREE, SLOW, evolve(SLOW, regex="fast"), FREE]
    with gated_llm(gates, 2, deterministic=promise) as llm:

        def waited(waiting: WaitingForGrammar, timeout_s: float) -> None:
            stats = llm.built.engine.core.stats()
            steps.append(stats.steps_prefill + stats.steps_decode)
            if "fast" in gates.engine.compiled:
                gates.engine.gate.set()
            wait(waiting, timeout_s)

        monkeypatch.setattr(WaitingForGrammar, "wait", waited)
        outputs = llm.generate(["a", "b", "c", "d"], params)
        check_idle(llm)
    assert [outputs[1].text, outputs[2].text] == ["slow", "fast"]
    if promise == "run":
        assert set(steps) == {0}
        assert started == [0, 3, 1, 2]
    else:
        assert min(steps) > 0


def test_engine_with_only_waiting_requests_waits_without_spinning(gates, monkeypatch):
    waits: list[float] = []
    steps = 0

    def wait(self: Any, timeout_s: float) -> None:
        waits.append(timeout_s)
        if len(waits) == 3:  # the first two times pass without news
            gates.engine.gate.set()
            if not self._news.wait(60):
                raise AssertionError("no news")

    def step(engine: Any) -> bool:
        nonlocal steps
        steps += not llm.built.engine._live
        return original(engine)

    original = Engine.step
    monkeypatch.setattr(CompileService, "wait", wait)
    monkeypatch.setattr(Engine, "step", step)
    with gated_llm(gates) as llm:
        (output,) = llm.generate(["a"], SLOW)
    assert output.text == "slow"
    assert (len(waits), steps) == (3, 4)  # one look for each wait, and the one that finds the grammar
    assert all(seconds <= 0.1 for seconds in waits)  # so that Ctrl-C is seen soon


def test_requests_for_one_grammar_share_its_compile(gates):
    gates.engine.gate.set()
    with gated_llm(gates, workers=4) as llm:
        outputs = llm.generate(["a"] * 6, [SLOW] * 5 + [SamplingParams(regex="other", max_tokens=9)])
        again = llm.generate(["a"], SLOW)
        report = llm.grammar_report
    assert [output.text for output in [*outputs, *again]] == ["slow"] * 5 + ["other", "slow"]
    assert sorted(gates.engine.compiled) == ["other", "slow"]
    assert (report.compiled, report.cached >= 1) == (2, True)


def test_timeout_counts_from_submission_and_ends_only_its_request(gates, clock, cpus):
    with gated_llm(gates, workers=2, so_timeout_s=20) as llm, llm.stream(["a", "b"], [SLOW, FREE]) as stream:
        outputs: dict[int, Any] = {}
        stream._run._feed()
        assert gates.engine.begun.acquire(timeout=60)
        for chunk in stream:
            if chunk.output is not None:
                outputs[chunk.index] = chunk.output
            if chunk.index == 1:
                clock.time_s += 4  # per token of the request that runs
        check_idle(llm)
        report = llm.grammar_report
        late = outputs[0]
        assert (late.finish_reason, late.finish_detail) == ("grammar", "so_compile_timeout")
        assert str(late.error) == (
            "E_GRAMMAR: request 0: the regex grammar did not compile within 20 s\n"
            "  reason: the time counts from submission, waiting for a free worker included\n"
            "  remedy: simplify the grammar, or raise --so-timeout-s or --so-builder-cpus"
        )
        assert list(outputs[1].token_ids) == solo_tokens([257, ord("b")], 6)
        assert (report.timed_out, report.stuck_workers) == (1, 1)
        # The other worker still compiles, and the stuck one is free again when it comes back.
        assert llm.generate(["a"], SamplingParams(regex="ok"))[0].text == "ok"
        gates.engine.gate.set()
        assert llm.generate(["a"], SLOW)[0].text == "slow"
        assert llm.grammar_report.stuck_workers == 0


def test_grammar_is_refused_when_every_worker_is_stuck(gates, clock, cpus):
    with gated_llm(gates, workers=2, so_timeout_s=20) as llm:
        assert llm.generate(["a"], SamplingParams(regex="ok"))[0].text == "ok"
        with llm.stream(["a", "b"], [SLOW, SamplingParams(regex="slowly")]) as stream:
            stream._run._feed()
            for _ in range(2):
                assert gates.engine.begun.acquire(timeout=60)
            clock.time_s += 20
            details = [chunk.completion.finish_detail for chunk in stream if chunk.completion is not None]
        assert details == ["so_compile_timeout"] * 2
        assert llm.grammar_report.stuck_workers == 2
        (refused,) = llm.generate(["c"], SamplingParams(regex="new"))
        assert (refused.finish_reason, refused.finish_detail) == ("grammar", "so_no_capacity")
        assert str(refused.error) == (
            "E_GRAMMAR: request 0: no worker can compile its grammar\n"
            "  reason: all 2 compile longer than 20 s, and a thread cannot be stopped\n"
            "  remedy: send grammars that were compiled before, wait, or make a new LLM"
        )
        assert llm.generate(["a"], SamplingParams(regex="ok"))[0].text == "ok"  # compiled before
        assert llm.generate(["a"], FREE)[0].ok
        check_idle(llm)


def test_request_in_the_queue_is_refused_when_every_worker_is_stuck(gates, clock):
    with gated_llm(gates, workers=1, so_timeout_s=20) as llm:
        with llm.stream(["a"], SLOW) as first:
            first._run._feed()
            assert gates.engine.begun.acquire(timeout=60)
            clock.time_s += 19
            later = llm.run(iter(prompts_in("b", SamplingParams(regex="queued"))))
            later._feed()
            clock.time_s += 1  # the worker is stuck from here on; the second request waited for a second
            (ended,) = [request for request in later if request.finished]
        assert ended.finish_detail == "so_no_capacity"
        check_idle(llm)


def test_abort_while_the_grammar_compiles(gates):
    with gated_llm(gates) as llm, llm.stream(["a", "b"], [SLOW, FREE]) as stream:
        outputs = {}
        for chunk in stream:
            if chunk.index == 1 and not chunk.finished:
                stream.cancel(0)
            if chunk.output is not None:
                outputs[chunk.index] = chunk.output
        check_idle(llm)
    assert (outputs[0].finish_reason, outputs[0].token_ids) == ("abort", ())
    assert outputs[1].ok


def test_abort_of_some_samples_while_the_grammar_compiles_starts_the_others(gates):
    with gated_llm(gates) as llm:
        run = llm.run(iter(prompts_in("a", SamplingParams(regex="slow", n=3, temperature=0))))
        run._feed()
        first, second, third = run._live[0].samples
        llm.built.engine.abort([first, third])
        gates.engine.gate.set()
        ended = [request for request in run if request.finished]
        check_idle(llm)
    assert {request.sample: request.finish_reason for request in ended} == {0: "abort", 1: "stop", 2: "abort"}
    assert second.detokenizer.text == "slow"


def prompts_in(text: str, params: SamplingParams) -> list[Any]:
    from deepinfer_core.requests.prompts import PromptInput

    return [PromptInput(text, params)]


def test_close_does_not_wait_for_a_worker_that_compiles(gates):
    llm = gated_llm(gates)
    stream = llm.stream(["a"], SLOW)
    run = stream._run
    run._feed()
    assert gates.engine.begun.acquire(timeout=60)
    start = time.monotonic()
    llm.close()
    assert time.monotonic() - start < 5
    (request,) = run._live.values()
    assert (request.finish_reason, llm.built.engine.num_live) == ("abort", 0)
    llm.close()


def test_interrupt_while_only_grammars_compile_is_seen(gates, monkeypatch):
    def wait(self: Any, timeout_s: float) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(CompileService, "wait", wait)
    with gated_llm(gates) as llm:
        with pytest.raises(KeyboardInterrupt) as caught:
            llm.generate(["a"], SLOW)
        (partial,) = caught.value.partial
        assert partial.finish_reason == "abort"
        check_idle(llm)


def test_requests_of_another_thread_run_while_one_waits_for_its_grammar(gates):
    with gated_llm(gates) as llm:
        results: list[Any] = []
        other = threading.Thread(target=lambda: results.extend(llm.generate(["a"], SLOW)))
        other.start()
        assert gates.engine.begun.acquire(timeout=60)
        assert llm.generate(["b"], FREE)[0].ok
        gates.engine.gate.set()
        other.join(60)
        assert [output.text for output in results] == ["slow"]


def test_fault_of_the_engine_ends_requests_that_wait(gates):
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    with gated_llm(gates) as llm:
        engine = llm.built.engine
        run = llm.run(iter(prompts_in("a", SLOW)))
        run._feed()
        from deepinfer_core.errors import EngineError

        engine._break(EngineError("broken"))
        (request,) = list(run)
        assert (request.finish_reason, request.error.what) == ("engine", "broken")
