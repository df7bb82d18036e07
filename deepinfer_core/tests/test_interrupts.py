"""Ctrl-C while a step runs: held once, then at once."""

from __future__ import annotations

import signal

import pytest

from deepinfer_core.interrupts import HeldInterrupt, NotedInterrupt, StepInterrupted, forget_interrupt


def test_second_interrupt_of_a_step_is_told_from_the_first() -> None:
    with pytest.raises(KeyboardInterrupt) as first, HeldInterrupt():
        signal.raise_signal(signal.SIGINT)
    assert type(first.value) is KeyboardInterrupt
    reached = []
    with pytest.raises(StepInterrupted), HeldInterrupt():
        signal.raise_signal(signal.SIGINT)
        reached.append("held")
        signal.raise_signal(signal.SIGINT)
        reached.append("not reached")
    assert reached == ["held"]


def test_interrupt_that_was_dealt_with_is_forgotten() -> None:
    held = signal.getsignal(signal.SIGINT)
    noted = NotedInterrupt()
    signal.signal(signal.SIGINT, noted)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert noted.came
        forget_interrupt()
        assert not noted.came
    finally:
        signal.signal(signal.SIGINT, held)
