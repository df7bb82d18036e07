"""Ctrl-C between steps, not inside one.

A KeyboardInterrupt may rise at any bytecode; in the middle of a step it would leave the scheduler with a step that
nobody commits. While :class:`HeldInterrupt` is active the first SIGINT is remembered and raised at the end; a second
one is raised at once, for the case that a step takes too long.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self


class HeldInterrupt:
    """Context manager; does nothing outside the main thread or where the application has its own SIGINT handler.

    ``notice`` is called when the first SIGINT is held. It runs inside the signal handler, so it may interrupt a write.
    """

    __slots__ = ("_active", "_notice", "_pending")

    def __init__(self, notice: Callable[[], None] | None = None) -> None:
        self._notice = notice
        self._active = False
        self._pending = False

    def __enter__(self) -> Self:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            self._active = True
            signal.signal(signal.SIGINT, self._remember)
        return self

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self._pending:
            signal.default_int_handler(number, frame)
        self._pending = True
        if self._notice is not None:
            self._notice()

    def __exit__(self, *exc: object) -> None:
        if not self._active:
            return
        self._active = False
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt
