"""A time limit for expressions of users: one that backtracks without end would stop the scoring, and not say so."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from deepinfer_core.errors import InvalidParameter

LIMIT_S = 10.0
"""For one expression and one answer; matching takes microseconds."""


@contextmanager
def limited(pattern: re.Pattern[str]) -> Iterator[None]:
    """Inside, ``pattern`` may match for ``LIMIT_S``; then InvalidParameter is raised, which names it.

    Python's engine looks for signals while it matches, and so a timer can end it. There is none outside the main
    thread, nor where the application has a timer of its own.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise InvalidParameter(
            f"the expression {pattern.pattern!r} was not done with an answer after {LIMIT_S:g} s",
            reason="it tries many ways to match the same text",
            remedy="write it so that there is one way, such as a+ for (a+)+",
            details={"expression": pattern.pattern},
        )

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
