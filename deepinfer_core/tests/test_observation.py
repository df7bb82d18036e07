"""Observers of plugins: what they are told, that they change nothing, and where the time of a request is said."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from attrs import define, field
from engine_toys import ToyModel, ToyParts, byte_tokenizer, check_idle, ids, prompts_of, small_pool, toy_llm

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import PluginMissing
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.types import RequestReport, StepReport

PARAMS = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
PROMPTS = prompts_of(3, 9)


@define(eq=False)
class Recorder:
    """Keeps everything."""

    engine: Any = None
    steps: list[StepReport] = field(factory=list)
    ends: list[RequestReport] = field(factory=list)
    closed: int = 0
    fails_in: str = ""

    def ready(self, engine: Any) -> None:
        self.engine = engine

    def step(self, step: StepReport) -> None:
        if self.fails_in == "step":
            raise ValueError("no")
        self.steps.append(step)

    def ended(self, request: RequestReport) -> None:
        if self.fails_in == "ended":
            raise ValueError("no")
        self.ends.append(request)

    def close(self) -> None:
        self.closed += 1


def watched(*observers: Recorder, model: Any = None, **settings: Any) -> LLM:
    settings = {"validation": "full", **small_pool(40, 4), **settings}
    parts = ToyParts(EngineConfig.resolve(settings, environ={}, flag_origin="argument"))
    if model is not None:
        parts.model = model
    parts.observers = observers
    return LLM.from_assembly(parts, byte_tokenizer())


def test_nobody_observes_and_nothing_is_called() -> None:
    with toy_llm() as llm:
        engine = llm.built.engine
        assert (engine.meter.observers, engine.emitter.listeners) == ([], [])


def test_observer_sees_every_step_and_every_end() -> None:
    seen = Recorder()
    with watched(seen) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
        stats = llm.built.engine.core.stats()
    with toy_llm() as plain:
        assert ids(outputs) == ids(plain.generate(PROMPTS, PARAMS))
    assert len(seen.steps) == stats.steps_prefill + stats.steps_decode
    assert {step.kind for step in seen.steps} == {"prefill", "decode"}
    assert sum(step.num_tokens for step in seen.steps) == stats.tokens_prefill + stats.tokens_decode
    assert all(seconds >= 0 for step in seen.steps for seconds in step.phases.values())
    assert sum(step.phases["forward"] for step in seen.steps) == pytest.approx(llm.times.forward * 1e-9)
    assert [(end.finish_reason, end.output_tokens, end.prompt_tokens) for end in seen.ends] == [("length", 6, 9)] * 3
    assert seen.engine.snapshot().stats.tokens_output == 18  # also after the end


def test_view_knows_the_step_that_runs_and_the_engine_that_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepinfer_core.observation.watch.WAIT_S", 0.01)
    monkeypatch.setattr("deepinfer_core.observation.watch.RETRY_S", 0.01)
    seen, found = Recorder(), []

    class Looking(ToyModel):
        def forward(self, inputs: Any, caches: Any) -> Any:
            asked: list[int] = []
            other = threading.Thread(target=lambda: asked.append(seen.engine.snapshot().audits))
            other.start()  # another thread is not let in, and gives up waiting: this step goes on behind it
            other.join(10)
            found.append((seen.engine.num_in_flight, seen.engine.in_flight_s > 0, seen.engine.num_live, asked))
            return super().forward(inputs, caches)

    with watched(seen, model=Looking(), overlap=False) as llm:
        assert (seen.engine.num_live, seen.engine.in_flight_s, seen.engine.fault) == (0, 0.0, "")
        llm.generate(PROMPTS[:2], PARAMS)
        assert found
        assert {(item[0], item[1], item[2], *item[3]) for item in found} == {(1, True, 2, 0)}
        snapshot = seen.engine.snapshot()
        assert (snapshot.fault, snapshot.audits > 0, snapshot.stats.unfinished) == ("", True, 0)
        assert seen.engine.progress_age_s < 60
    assert seen.engine.snapshot().stats.tokens_output == 12  # as it was, after the end


def test_question_during_a_step_is_answered_at_its_end() -> None:
    seen, answers = Recorder(), []

    class Asked(ToyModel):
        def forward(self, inputs: Any, caches: Any) -> Any:
            if not answers:
                answers.append(threading.Thread(target=lambda: answers.append(seen.engine.snapshot())))
                answers[0].start()
                while not seen.engine._asked:
                    answers[0].join(0.001)
            return super().forward(inputs, caches)

    with watched(seen, model=Asked()) as llm:
        llm.generate(PROMPTS[:1], PARAMS)
        answers[0].join(10)
    assert answers[1].stats.steps_prefill == 1


def test_observer_may_ask_in_its_own_step() -> None:
    class Asking(Recorder):
        def step(self, step: StepReport) -> None:
            self.steps.append(self.engine.snapshot().stats.tokens_output)

    seen = Asking()
    with watched(seen) as llm:
        llm.generate(PROMPTS[:1], PARAMS)
    assert seen.steps == [1, 2, 3, 4, 5, 6]


def test_leak_is_found_where_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Recorder()
    with watched(seen) as llm:
        llm.generate(PROMPTS, PARAMS)
        core = llm.built.engine.core

        def audit(self: Any) -> None:
            raise RuntimeError("block 3 has no owner")

        monkeypatch.setattr(type(core), "audit", audit)
        assert seen.engine.snapshot().fault == "block 3 has no owner"
        monkeypatch.undo()
        assert seen.engine.snapshot().fault == ""
        check_idle(llm)


@pytest.mark.parametrize("place", ["step", "ended"])
def test_observer_that_fails_is_dropped_and_the_others_stay(place: str) -> None:
    bad, good = Recorder(fails_in=place), Recorder()
    with watched(bad, good) as llm:
        with pytest.warns(UserWarning, match="W_OBSERVER: Recorder failed and is off: ValueError: no"):
            outputs = llm.generate(PROMPTS, PARAMS)
        assert all(output.ok for output in outputs)
        llm.generate(PROMPTS, PARAMS)
    assert len(good.ends) == 6
    assert len(bad.ends if place == "ended" else bad.steps) == 0


def test_requests_that_fail_or_are_cancelled_are_told_with_their_reason() -> None:
    seen = Recorder()
    with watched(seen) as llm:
        with llm.stream(PROMPTS, SamplingParams(max_tokens=50, temperature=0, ignore_eos=True)) as stream:
            next(stream)
            stream.cancel(1)
        assert [end.finish_reason for end in seen.ends] == ["abort"] * 3
        check_idle(llm)


def test_results_say_where_the_time_went() -> None:
    with toy_llm() as llm:
        long, one = llm.generate(PROMPTS[:2], [PARAMS, PARAMS.updated({"max_tokens": 1})])
        [samples] = llm.generate(PROMPTS[:1], PARAMS.updated({"n": 2, "temperature": 1.0}))
    times = long.times
    assert times is not None
    assert times.queue_s is not None
    assert times.ttft_s is not None
    assert times.itl_s is not None
    assert 0 <= times.queue_s <= times.ttft_s <= times.total_s
    assert times.ttft_s + 5 * times.itl_s == pytest.approx(times.total_s)
    assert one.times is not None
    assert one.times.itl_s is None
    record = long.as_record()["times"]
    assert list(record) == ["queue_s", "ttft_s", "itl_s", "total_s"]  # type: ignore[call-overload]
    assert all(c.times is not None and c.times.queue_s is not None for c in samples.outputs)
    assert [set(o) & {"times"} for o in samples.as_record()["outputs"]] == [{"times"}] * 2  # type: ignore[attr-defined]


def test_prompt_that_no_engine_saw_has_no_times() -> None:
    with toy_llm() as llm:
        [output] = llm.generate([""], PARAMS)
    assert output.times is None
    assert "times" not in output.as_record()


def test_wanting_metrics_without_their_plugin_is_refused_with_what_to_install() -> None:
    from deepinfer_core.assembly.named_plugins import refuse_unusable_names
    from deepinfer_core.plugins.manager import PluginManager
    from deepinfer_core.plugins.registry import Registry

    config = EngineConfig.resolve({"observe.metrics_port": 0}, environ={}, flag_origin="argument")
    registry = Registry.build(config, entries=(), warn=lambda line: None)
    with pytest.raises(PluginMissing) as caught:
        refuse_unusable_names(PluginManager(registry, config))
    assert caught.value.remedy == "pip install deepinfer-metrics, or leave the settings of [observe] out"
