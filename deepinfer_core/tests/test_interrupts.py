"""Ctrl-C while a step runs: held once, then at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from deepinfer_core.interrupts import HeldInterrupt, NotedInterrupt, StepInterrupted, forget_interrupt


@pytest.fixture
def noted() -> Iterator[NotedInterrupt]:
    """The handler of the command line, in place."""
    held = signal.getsignal(signal.SIGINT)
    handler = NotedInterrupt()
    signal.signal(signal.SIGINT, handler)
    yield handler
    signal.signal(signal.SIGINT, held)


def interrupts(count: int) -> None:
    """So many Ctrl-C in one step."""
    with HeldInterrupt():
        for _ in range(count):
            signal.raise_signal(signal.SIGINT)


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
