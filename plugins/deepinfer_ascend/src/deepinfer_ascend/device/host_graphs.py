"""Graphs of the emulation: a call that is recorded by keeping it, and launched again by calling it."""

from __future__ import annotations

from collections.abc import Callable


def capture_on_host(call: Callable[[], object]) -> Callable[[], None]:
    """Run ``call`` once; the result runs it again, on the same memory."""
    call()

    def replay() -> None:
        call()

    return replay
