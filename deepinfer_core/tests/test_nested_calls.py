"""Calls from inside a step, as signal handlers, finalisers, plugins and observers make them: the engine goes on."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from engine_toys import Faulty, ToyModel, ToySampler, check_idle, ids, prompts_of, toy_llm

from deepinfer_core.errors import EngineError
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams

pytestmark = pytest.mark.usefixtures("overlap")
PARAMS = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
PROMPTS = prompts_of(3, 9)
INSIDE = "the engine was called from inside one of its own steps"


class Once:
    """Calls ``act`` in the call ``number`` of a plugin's method, which then goes on."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.act: Callable[[], object] | None = None

    def __call__(self, _method: str, number: int, go: Callable[[], Any]) -> Any:
        if number == self.number and self.act is not None:
            act, self.act = self.act, None
            act()
        return go()


@pytest.fixture(params=["forward", "sample"])
def inside(request: pytest.FixtureRequest) -> tuple[LLM, Once]:
    """An engine, and what is called in its fourth step: while it is launched, or while it is sampled."""
    once = Once(4)
    part, kind = ("model", ToyModel) if request.param == "forward" else ("sampler", ToySampler)
    return toy_llm(parts={part: Faulty(kind(), once, request.param)}), once


def check_goes_on(llm: LLM) -> None:
    """The engine works, and what was given up has been given back."""
    with toy_llm() as fresh:
        expected = ids(fresh.generate(PROMPTS, PARAMS))
    assert ids(llm.generate(PROMPTS, PARAMS)) == expected
    check_idle(llm)
    llm.close()


@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside-others"])
def test_cancel_from_inside_a_step_ends_the_requests_and_nothing_else(inside: tuple[LLM, Once], others: bool) -> None:
    llm, once = inside
    stream = llm.stream(PROMPTS, PARAMS)
    next(stream)
    once.act = lambda: [stream.cancel(index) for index in range(len(PROMPTS))]
    if others:
        assert [output.finish_reason for output in llm.generate(PROMPTS[:2], PARAMS)] == ["length"] * 2
    assert [c.output.finish_reason for c in stream if c.output is not None] == ["abort"] * 3
    check_goes_on(llm)


def test_stream_that_the_collector_finds_in_a_step_is_given_up(inside: tuple[LLM, Once]) -> None:
    llm, once = inside
    stream = llm.stream(PROMPTS, PARAMS)
    next(stream)
    knot: list[object] = [stream]
    knot.append(knot)
    del knot, stream
    once.act = gc.collect
    gc.disable()
    try:
        assert [output.finish_reason for output in llm.generate(PROMPTS[:2], PARAMS)] == ["length"] * 2
    finally:
        gc.enable()
    check_goes_on(llm)


@pytest.mark.parametrize("what", ["generate", "next", "flush", "reset"])
def test_what_needs_a_step_is_refused_inside_one_and_the_engine_goes_on(inside: tuple[LLM, Once], what: str) -> None:
    llm, once = inside
    stream = llm.stream(PROMPTS, PARAMS)
    next(stream)
    list(zip(stream, range(2), strict=False))  # nothing is left that is there already
    calls: dict[str, Callable[[], object]] = {
        "generate": lambda: llm.generate([1, 2, 3], PARAMS),
        "next": lambda: list(stream),
        "flush": llm.built.engine.flush,
        "reset": llm.reset_prefix_cache,
    }
    said = []

    def act() -> None:
        with pytest.raises(EngineError, match=INSIDE) as refused:
            calls[what]()
        said.append(refused.value.remedy)

    once.act = act
    assert [output.finish_reason for output in llm.generate(PROMPTS[:2], PARAMS)] == ["length"] * 2
    assert "from another thread" in said[0]
    assert [c.output.finish_reason for c in stream if c.output is not None] == (
        [] if what == "next" else ["length"] * 3
    )
    check_goes_on(llm)


def test_close_from_inside_a_step_ends_all(inside: tuple[LLM, Once]) -> None:
    llm, once = inside
    once.act = llm.close
    assert [output.finish_reason for output in llm.generate(PROMPTS, PARAMS)] == ["abort"] * 3
    with pytest.raises(EngineError, match="closed"):
        llm.generate(PROMPTS, PARAMS)
