"""Ctrl-C while a step runs: held once, then at once."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest
from engine_toys import check_idle, prompts_of, toy_llm

from deepinfer_core.interrupts import (
    HeldInterrupt,
    NotedInterrupt,
    StepInterrupted,
    Termination,
    forget_interrupt,
    raise_swallowed,
)
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.requests.prompts import inputs_of


@pytest.fixture
def noted() -> Iterator[NotedInterrupt]:
    """The handler of the command line, in place."""
    held = signal.getsignal(signal.SIGINT)
    handler = NotedInterrupt()
    signal.signal(signal.SIGINT, handler)
    yield handler
    signal.signal(signal.SIGINT, held)


def interrupts(count: int, number: signal.Signals = signal.SIGINT) -> None:
    """So many Ctrl-C in one step."""
    with HeldInterrupt():
        for _ in range(count):
            signal.raise_signal(number)


@pytest.mark.usefixtures("noted")
def test_second_interrupt_of_a_step_is_told_from_the_first() -> None:
    with pytest.raises(KeyboardInterrupt) as first:
        interrupts(1)
    assert type(first.value) is KeyboardInterrupt
    with pytest.raises(StepInterrupted):
        interrupts(2)


def test_interrupt_that_was_dealt_with_is_forgotten(noted: NotedInterrupt) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert noted.came
    forget_interrupt()
    assert not noted.came


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background"])
def installed(request: pytest.FixtureRequest) -> Iterator[NotedInterrupt]:
    """What a command installs where SIGINT is as Python has it, and where a script's job ignores it."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, request.param)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    handler = NotedInterrupt()
    handler.install()
    yield handler
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGTERM, before[1])


def test_sigterm_waits_for_the_end_of_the_step_and_cannot_be_forgotten(installed: NotedInterrupt) -> None:
    held = []

    def step() -> None:
        with HeldInterrupt() as outer:
            with HeldInterrupt():  # of a line, within a step: the outer one holds
                signal.raise_signal(signal.SIGTERM)
            held.append(outer.came)

    with pytest.raises(KeyboardInterrupt) as caught:
        step()
    assert held == [True]
    assert type(caught.value) is KeyboardInterrupt
    assert installed.terminates
    with pytest.raises(KeyboardInterrupt):
        forget_interrupt()


def test_second_sigterm_breaks_into_the_step(installed: NotedInterrupt) -> None:
    with pytest.raises(StepInterrupted):
        interrupts(2, signal.SIGTERM)
    assert installed.terminates


def test_sigterm_between_steps_rises_at_once(installed: NotedInterrupt) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert installed.terminates
    with pytest.raises(KeyboardInterrupt):
        raise_swallowed()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_handler_of_an_application_stays(number: signal.Signals) -> None:
    def own(*_: object) -> None: ...

    before = signal.signal(number, own)
    try:
        NotedInterrupt().install()
        assert signal.getsignal(number) is own
    finally:
        signal.signal(number, before)
        for other in (signal.SIGINT, signal.SIGTERM):
            if isinstance(signal.getsignal(other), (NotedInterrupt, Termination)):
                signal.signal(other, signal.default_int_handler if other == signal.SIGINT else signal.SIG_DFL)


def swallow() -> None:
    """A Ctrl-C within compiled code that loses exceptions."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("noted")
def test_interrupt_that_was_swallowed_rises_where_it_is_asked_for() -> None:
    raise_swallowed()
    swallow()
    with pytest.raises(KeyboardInterrupt):
        raise_swallowed()
    forget_interrupt()
    raise_swallowed()


@pytest.mark.usefixtures("noted")
def test_interrupt_that_was_swallowed_ends_a_run_before_its_next_step() -> None:
    with toy_llm() as llm:
        params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in (2, 50)]
        run = llm.run(inputs_of(prompts_of(2, 8), params))
        assert next(run).index == 0
        swallow()
        with pytest.raises(KeyboardInterrupt):
            next(run)
        (cut,) = run.stop()
        assert (cut.index, cut.finish_reason) == (1, "abort")
        assert len(cut.token_ids) < 5
        check_idle(llm)
