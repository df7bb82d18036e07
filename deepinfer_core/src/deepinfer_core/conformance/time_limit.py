"""A test that hangs fails instead: a plugin that waits for ever would otherwise leave no report."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

AGAIN_S = 5.0
"""The failure is raised again after so long: code that catches everything may have caught the first one."""


class TimeLimitReached(BaseException):
    """A test took too long. No ``Exception``, so that the code that hangs does not catch it as a fault of its own."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimitReached inside the block once it has run for ``seconds``; 0 is no limit.

    Python code is interrupted; a call of compiled code that never comes back is not. What the block makes of the
    interruption does not count, it ends with TimeLimitReached: a guard around a plugin takes it for an error of the
    plugin, and other code may catch it. Nothing is limited outside of the main thread, without ``SIGALRM``, and where
    somebody else (pytest-timeout) has set that timer.
    """
    if not _can_limit(seconds):
        yield
        return
    reached: list[TimeLimitReached] = []

    def end(number: int, frame: FrameType | None) -> NoReturn:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "unknown"
        text = f"the test does not come to an end\n  where: {where}\n  limit: {seconds:g} s (--time-limit)"
        reached.append(TimeLimitReached(text))
        raise reached[-1]

    before = signal.signal(signal.SIGALRM, end)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    finally:  # the timer may go off while the inner one begins; the next time would be AGAIN_S later
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if reached:
            raise reached[0]


def _can_limit(seconds: float) -> bool:
    if seconds <= 0 or not hasattr(signal, "setitimer"):
        return False
    return threading.current_thread() is threading.main_thread() and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
