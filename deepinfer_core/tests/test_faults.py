"""Faults and interruptions: they end what they concern, give everything back, and nothing hangs."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_toys import (
    Faulty,
    ToyBackend,
    ToyModel,
    ToySampler,
    check_idle,
    ids,
    prompts_of,
    small_pool,
    solo_tokens,
    toy_llm,
)

from deepinfer_core.errors import BackendError, CapacityError, DeviceLost, EngineError, NanFound, NotSupported
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
CALLS = {
    "forward": ("model", ToyModel, "model.forward"),
    "logits": ("model", ToyModel, "model.logits"),
    "sample": ("sampler", ToySampler, "sampler.sample"),
    "bind_inputs": ("backend", ToyBackend, "backend.bind_inputs"),
}

pytestmark = pytest.mark.usefixtures("overlap")


def faulty_llm(method: str, fault: Callable[[str, int, Any], Any], **settings: object) -> LLM:
    part, kind, _ = CALLS[method]
    return toy_llm(parts={part: Faulty(kind(), fault, method)}, **settings)  # type: ignore[arg-type]


def raise_at(number: int, error: BaseException) -> Callable[[str, int, Any], Any]:
    def fault(method: str, call: int, go: Callable[[], Any]) -> Any:
        if call == number:
            raise error
        return go()

    return fault


@pytest.mark.parametrize("number", [1, 2, 3, 5])
@pytest.mark.parametrize("method", list(CALLS))
def test_exception_ends_the_requests_of_the_step_and_the_next_ones_run(method: str, number: int) -> None:
    prompts = prompts_of(4, 6)
    with faulty_llm(method, raise_at(number, RuntimeError("boom")), max_num_seqs=2) as llm:
        outputs = llm.generate(prompts, PARAMS)
        check_idle(llm)
        again = llm.generate(prompts, PARAMS)
        check_idle(llm)
    want = [solo_tokens(p, 8, ends=frozenset()) for p in prompts]
    failed = [output for output in outputs if output.error is not None]
    assert 1 <= len(failed) <= 2
    for output in outputs:
        assert list(output.token_ids) == want[output.index][: len(output.token_ids)]
        if output.error is None:
            assert list(output.token_ids) == want[output.index]
        else:
            assert output.finish_reason == "engine"
            assert output.error.code == "E_ENGINE"
            assert output.error.details["op"] == CALLS[method][2]
            assert output.error.reason.startswith("RuntimeError: boom (raised at ")
            assert output.error.what.startswith(
                f"{CALLS[method][2]} of toy (acme-{CALLS[method][0]} 0.1) failed in step "
            )
            assert output.error.details["plugin"] in output.error.remedy
    assert ids(again) == want


def test_typed_error_of_a_backend_keeps_its_code() -> None:
    with faulty_llm("forward", raise_at(1, BackendError("no such op", remedy="install it"))) as llm:
        (output,) = llm.generate([[1]], PARAMS)
    assert output.error is not None
    assert output.error.details["code"] == "E_BACKEND"
    assert output.error.remedy == "install it"


@pytest.mark.parametrize("method", ["forward", "logits"])
def test_wrong_number_of_rows_is_a_fault_of_the_step(method: str) -> None:
    with faulty_llm(method, lambda name, call, go: go()[:-1] if call == 2 else go()) as llm:
        outputs = llm.generate(prompts_of(3, 4), PARAMS)
        check_idle(llm)
    assert [output.finish_reason for output in outputs] == ["engine"] * 3
    assert all("rows, expected 3" in output.error.reason for output in outputs if output.error)


def test_nan_row_ends_only_its_request() -> None:
    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        logits = go()
        if call == 3:
            logits[1, 5] = np.nan
        return logits

    prompts = prompts_of(3, 5)
    with faulty_llm("logits", fault) as llm:
        outputs = llm.generate(prompts, PARAMS)
        check_idle(llm)
        (again,) = llm.generate([prompts[1]], PARAMS)
    want = [solo_tokens(p, 8, ends=frozenset()) for p in prompts]
    assert [output.finish_reason for output in outputs] == ["length", "engine", "length"]
    assert outputs[1].finish_detail == "nan_logits"
    assert outputs[1].error is not None
    assert outputs[1].error.code == "E_REQUEST"
    assert ids(outputs) == [want[0], want[1][:2], want[2]]
    assert list(again.token_ids) == want[1]


@pytest.mark.parametrize("lost", ["short", "negative", "too large"])
def test_request_without_a_token_ends_with_an_error(lost: str) -> None:
    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        sampled = go()
        if call == 2:
            if lost == "short":
                sampled.sampled_ids = sampled.sampled_ids[:-1]
                sampled.row_status = None
            else:
                sampled.sampled_ids[-1] = -1 if lost == "negative" else 259
        return sampled

    prompts = prompts_of(3, 5)
    with faulty_llm("sample", fault) as llm:
        outputs = llm.generate(prompts, PARAMS)
        check_idle(llm)
    assert [output.finish_reason for output in outputs] == ["length", "length", "engine"]
    who = "sampler.sample of toy (acme-sampler 0.1)"
    text = {
        "short": f"{who} gave no token for this request",
        "negative": f"{who} chose the id -1, which is outside 0 to 257",
        "too large": f"{who} chose the id 259, which is outside 0 to 257",
    }
    assert outputs[2].error is not None
    assert outputs[2].error.what == f"request {outputs[2].request_id}: {text[lost]} (token 2)"
    assert "prompt" not in outputs[2].error.remedy
    assert "acme-sampler" in outputs[2].error.remedy


def sampled_as(**change: Callable[[Any], Any]) -> Callable[[str, int, Any], Any]:
    """A fault that passes fields of the second result through a function."""

    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        sampled = go()
        if call == 2:
            for key, function in change.items():
                setattr(sampled, key, function(getattr(sampled, key)))
        return sampled

    return fault


class OnDevice:
    """Memory that numpy cannot read, like a tensor of an accelerator."""

    def __init__(self, values: Any, dtype: str) -> None:
        self.values = values
        self.dtype = dtype

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise TypeError("not on the host")


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.uint64, np.int16, list, "column", "device"])
def test_tokens_of_another_integer_type_are_converted(dtype: Any) -> None:
    prompts = prompts_of(3, 5)

    class Fetching(ToyBackend):
        def to_host(self, tensor: Any) -> Any:
            return tensor.values

    def changed(ids: Any) -> Any:
        if dtype == "device":
            return OnDevice(ids, "int32")
        if dtype == "column":
            return ids.reshape(-1, 1)
        return ids.tolist() if dtype is list else ids.astype(dtype)

    parts = {"backend": Fetching(), "sampler": Faulty(ToySampler(), sampled_as(sampled_ids=changed), "sample")}
    with toy_llm(parts=parts) as llm:
        outputs = llm.generate(prompts, PARAMS)
    assert [output.error for output in outputs] == [None] * 3
    if dtype is not np.uint8:  # ids from 256 on do not fit into it
        assert ids(outputs) == [solo_tokens(p, 8, ends=frozenset()) for p in prompts]


WRONG_RETURNS = {
    "none": (lambda name, call, go: None, "returned None, expected a SamplerOutput with sampled_ids"),
    "object": (lambda name, call, go: 7, "returned int, expected a SamplerOutput with sampled_ids"),
    "no ids": (sampled_as(sampled_ids=lambda _: None), "returned SamplerOutput without sampled_ids, expected"),
    "float": (sampled_as(sampled_ids=lambda v: v.astype(np.float64)), "sampled_ids of dtype float64, expected int32"),
    "bool": (sampled_as(sampled_ids=lambda v: v > 0), "returned sampled_ids of dtype bool, expected int32"),
    "device": (sampled_as(sampled_ids=lambda v: OnDevice(v, "toy.bfloat16")), "sampled_ids of toy.bfloat16, expected"),
    "too many": (sampled_as(sampled_ids=lambda v: np.repeat(v, 2)), "returned 6 tokens for 3 requests, expected one"),
    "status": (sampled_as(row_status=lambda v: v + 9), "returned row_status 9, expected a value of RowStatus"),
    "logprob": (sampled_as(sampled_logprob=lambda v: ["a"] * len(v)), "sampled_logprob of dtype <U1, expected float32"),
}


@pytest.mark.parametrize("case", list(WRONG_RETURNS))
def test_wrong_return_of_a_sampler_names_it_and_what_came_back(case: str) -> None:
    fault, text = WRONG_RETURNS[case]
    with faulty_llm("sample", fault) as llm:
        outputs = llm.generate(prompts_of(3, 5), PARAMS)
        check_idle(llm)
    for output in outputs:
        assert output.error is not None
        assert output.error.code == "E_ENGINE"
        assert output.error.what.startswith("sampler.sample of toy (acme-sampler 0.1) failed in step ")
        assert output.error.reason.startswith("E_HOOK_RETURN: sampler.sample of toy (acme-sampler 0.1) returned ")
        assert text in output.error.reason
        assert "acme-sampler" in output.error.remedy
        assert "prompt" not in output.error.remedy


def test_result_that_the_core_refuses_is_the_samplers_fault() -> None:
    with faulty_llm("sample", sampled_as(sampled_logprob=lambda v: v + 1)) as llm:
        (output,) = llm.generate([[1, 2]], PARAMS)
        check_idle(llm)
    assert output.error is not None
    assert output.error.what.startswith("sampler.sample of toy (acme-sampler 0.1) failed in step ")
    assert "sampled_logprob" in output.error.reason


@pytest.mark.parametrize(("method", "text"), [("forward", "a tensor of"), ("logits", "a tensor of"),
                                              ("bind_inputs", "InputMetadata")])  # fmt: skip
def test_part_that_returns_nothing_is_named(method: str, text: str) -> None:
    with faulty_llm(method, lambda name, call, go: None) as llm:
        (output,) = llm.generate([[1, 2]], PARAMS)
        check_idle(llm)
    part, _, op = CALLS[method]
    assert output.error is not None
    assert output.error.reason.startswith(
        f"E_HOOK_RETURN: {op} of toy (acme-{part} 0.1) returned None, expected {text}"
    )


def test_scheduler_that_makes_no_progress_is_an_error_with_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    with toy_llm() as llm:
        core = llm.built.engine.core
        empty = core.schedule_local()
        monkeypatch.setattr(llm.built.engine, "core", Stuck(core, empty))
        outputs = llm.generate(["a", "b"], PARAMS)
    assert [output.finish_reason for output in outputs] == ["engine", "engine"]
    assert outputs[0].error is not None
    assert outputs[0].error.what == "no step could be scheduled for 2 requests"
    assert "scheduler state:" in outputs[0].error.reason


class Stuck:
    """A core that never schedules anything."""

    def __init__(self, core: Any, empty: Any) -> None:
        self._core = core
        self._empty = empty

    def schedule_local(self) -> Any:
        return self._empty

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


def test_core_that_fails_ends_the_requests_of_every_waiting_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with toy_llm() as llm:
        one, two = llm.stream([[1], [2]], PARAMS), llm.stream([[3]], PARAMS)
        next(one)
        next(two)
        core = Stuck(llm.built.engine.core, None)
        core.schedule_local = lambda: 1 / 0  # type: ignore[method-assign]
        monkeypatch.setattr(llm.built.engine, "core", core)
        reasons = [chunk.output.finish_reason for stream in (one, two) for chunk in stream if chunk.output]
    assert reasons == ["engine"] * 3


def test_core_that_fails_ends_everything_and_refuses_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with toy_llm() as llm:

        def broken() -> Any:
            raise RuntimeError("out of order")

        core = Stuck(llm.built.engine.core, None)
        core.schedule_local = broken  # type: ignore[method-assign]
        monkeypatch.setattr(llm.built.engine, "core", core)
        (output,) = llm.generate("a", PARAMS)
        assert output.error is not None
        assert output.error.reason == "RuntimeError: out of order"
        with pytest.raises(EngineError, match="the engine stopped after a fault"):
            llm.generate("b", PARAMS)


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("method", ["forward", "sample"])
def test_exit_inside_a_step_passes_on_and_leaves_the_engine_usable(method: str, number: int) -> None:
    prompts = prompts_of(2, 6)
    with faulty_llm(method, raise_at(number, SystemExit(3))) as llm:
        with pytest.raises(SystemExit):
            llm.generate(prompts, PARAMS)
        check_idle(llm)
        assert ids(llm.generate(prompts, PARAMS)) == [solo_tokens(p, 8, ends=frozenset()) for p in prompts]


def test_interrupt_keeps_finished_results_and_aborts_the_rest() -> None:
    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        if call == 4:
            signal.raise_signal(signal.SIGINT)
        return go()

    prompts = prompts_of(3, 6)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (2, 50, 50)]
    with faulty_llm("forward", fault) as llm:
        with pytest.raises(KeyboardInterrupt) as caught:
            llm.generate(prompts, params)
        check_idle(llm)
        partial = caught.value.partial  # type: ignore[attr-defined]
        assert [output.finish_reason for output in partial] == ["length", "abort", "abort"]
        # The step that was running is complete: its tokens are kept.
        assert ids(partial) == [solo_tokens(p, n, ends=frozenset()) for p, n in zip(prompts, (2, 4, 4), strict=True)]
        assert ids(llm.generate(prompts, PARAMS)) == [solo_tokens(p, 8, ends=frozenset()) for p in prompts]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_second_interrupt_ends_a_step_that_hangs() -> None:
    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        if call == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return go()

    with faulty_llm("forward", fault) as llm:
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompts_of(2, 6), PARAMS)
        check_idle(llm)


@pytest.mark.parametrize("after", [1, 2, 3, 9, 30])
def test_closing_a_stream_gives_everything_back(after: int) -> None:
    with toy_llm(max_num_seqs=3, max_chunk=4) as llm:
        stream = llm.stream(prompts_of(8, 14), PARAMS)
        for _ in range(after):
            next(stream)
        stream.close()
        check_idle(llm)
        assert list(stream) == []


def test_cancelled_prompt_ends_alone_at_its_place() -> None:
    prompts = prompts_of(10, 5)
    with toy_llm(max_num_seqs=2) as llm, llm.stream(prompts, PARAMS) as stream:
        stream.cancel(7)
        done = {}
        for chunk in stream:
            if chunk.index == 0 and len(chunk.token_ids) and not chunk.finished:
                stream.cancel(0)
            if chunk.output is not None:
                done[chunk.index] = chunk.output
        check_idle(llm)
    assert sorted(done) == list(range(10))
    assert [i for i in range(10) if done[i].finish_reason == "abort"] == [0, 7]
    for i in (1, 2, 9):
        assert list(done[i].token_ids) == solo_tokens(prompts[i], 8, ends=frozenset())


@pytest.mark.parametrize(("error", "code"), [(NotSupported("no images"), "E_UNSUPPORTED"), (KeyError("x"), "E_ENGINE")])
def test_prompt_that_the_model_refuses_is_an_error_at_its_place(error: Exception, code: str) -> None:
    class Picky(ToyModel):
        def check_prompt(self, ids: tuple[int, ...]) -> None:
            if 7 in ids:
                raise error

    with toy_llm(parts={"model": Picky()}) as llm:
        outputs = llm.generate([[1], [7], [2]], PARAMS)
        check_idle(llm)
    assert [output.finish_reason for output in outputs] == ["length", "input", "length"]
    assert outputs[1].error is not None
    assert outputs[1].error.code == code


@pytest.mark.parametrize("seed", range(8))
def test_random_cancels_and_faults_leave_nothing_behind(seed: int) -> None:
    draw = random.Random(seed)

    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        if draw.random() < 0.03:
            raise RuntimeError("boom")
        return go()

    prompts = [prompts_of(1, draw.randrange(1, 30), seed=i)[0] for i in range(40)]
    params = [SamplingParams(temperature=0, max_tokens=draw.randrange(1, 25), ignore_eos=True) for _ in prompts]
    done = {}
    with faulty_llm("forward", fault, **small_pool(18, 4), max_chunk=draw.choice([3, 8, None])) as llm:
        with llm.stream(prompts, params) as stream:
            for chunk in stream:
                if draw.random() < 0.05:
                    stream.cancel(draw.randrange(40))
                if chunk.output is not None:
                    done[chunk.index] = chunk.output
        check_idle(llm)
    assert sorted(done) == list(range(40))
    assert {output.finish_reason for output in done.values()} <= {"length", "abort", "engine"}
    for index, output in done.items():
        want = solo_tokens(prompts[index], params[index].max_tokens, ends=frozenset())
        assert list(output.token_ids) == want[: len(output.token_ids)]
        assert (output.finish_reason != "length") or len(output.token_ids) == len(want)


def test_observer_that_fails_is_dropped_and_changes_nothing() -> None:
    class Bad:
        def step(self, kind: str, num_reqs: int, num_tokens: int, seconds: float) -> None:
            raise ValueError("no")

    with toy_llm() as llm:
        llm.built.engine.meter.observers.append(Bad())
        with pytest.warns(UserWarning, match="W_OBSERVER: Bad failed and is off: no"):
            assert llm.generate("a", PARAMS)[0].ok
        assert llm.built.engine.meter.observers == []


def test_request_that_ends_while_another_one_fails_keeps_its_own_reason() -> None:
    prompts = [*prompts_of(1, 60), *prompts_of(1, 4)]
    settings = small_pool(8, 2)
    with faulty_llm("forward", raise_at(1, RuntimeError("boom")), **settings) as llm:
        outputs = llm.generate(prompts, PARAMS)
        check_idle(llm)
    assert [output.finish_reason for output in outputs] == ["too_long", "engine"]


@pytest.mark.parametrize("method", list(CALLS))
def test_a_lost_device_ends_every_request_and_the_engine(method: str) -> None:
    lost = DeviceLost("gemm.dense: the device is lost", reason="CUDA error", details={"op": "gemm.dense", "layer": 3})
    with faulty_llm(method, raise_at(3, lost), max_num_seqs=2) as llm:
        outputs = llm.generate(prompts_of(2, 6), PARAMS)
        assert llm.built.engine.num_live == 0
        with pytest.raises(EngineError, match="the engine stopped after a fault"):
            llm.generate(prompts_of(1, 6), PARAMS)
    for output in outputs:
        assert output.error is not None
        assert output.error.details["code"] == "E_DEVICE"
        assert (output.error.details["op"], output.error.details["layer"]) == ("gemm.dense", 3)
        assert output.error.reason == "E_DEVICE: gemm.dense: the device is lost in layer 3 (CUDA error)"


def test_no_memory_in_one_step_ends_its_requests_and_names_op_and_layer() -> None:
    full = CapacityError("moe.experts: the device has no memory left", details={"op": "moe.experts", "layer": 2})
    with faulty_llm("forward", raise_at(2, full), max_num_seqs=2) as llm:
        outputs = llm.generate(prompts_of(5, 6), PARAMS)
        check_idle(llm)
    failed = [output.error for output in outputs if output.error is not None]
    assert 1 <= len(failed) <= 2
    for error in failed:
        assert error.reason == "E_CAPACITY: moe.experts: the device has no memory left in layer 2"
        assert (error.details["code"], error.details["op"], error.details["layer"]) == ("E_CAPACITY", "moe.experts", 2)


def test_a_nan_in_an_op_names_the_requests_whose_rows_hold_it() -> None:
    """Three prompts of 6, 4 and 5 tokens are filled in one step."""

    def fault(method: str, call: int, go: Callable[[], Any]) -> Any:
        if call == 1:
            raise NanFound("norm.rms gave NaN", details={"op": "norm.rms", "rows": [3, 11, 14], "of": 15, "layer": 5})
        return go()

    prompts = [prompts_of(1, length, seed=length)[0] for length in (6, 4, 5)]
    with faulty_llm("forward", fault) as llm:
        outputs = llm.generate(prompts, PARAMS)
        check_idle(llm)
    for output in outputs:
        assert output.error is not None
        names = [outputs[0].request_id, outputs[2].request_id]
        assert output.error.details["requests"] == names
        assert output.error.reason == (
            f"E_NAN: norm.rms gave NaN in layer 5; the rows are of requests {names[0]}, {names[1]}"
        )


def test_what_the_backend_knows_of_an_exception_takes_its_place() -> None:
    backend = ToyBackend()
    backend.explain_fault = lambda op, exc: DeviceLost(f"{op}: gone") if "CUDA" in str(exc) else None  # type: ignore[attr-defined]
    for text, code in (("CUDA error", "E_DEVICE"), ("boom", None)):
        model = Faulty(ToyModel(), raise_at(2, RuntimeError(text)), "forward")
        with toy_llm(parts={"model": model, "backend": backend}) as llm:
            [output] = llm.generate(prompts_of(1, 6), PARAMS)
        assert output.error is not None
        assert output.error.details.get("code") == code
