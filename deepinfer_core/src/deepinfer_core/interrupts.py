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


class NotedInterrupt:
    """A SIGINT handler that raises KeyboardInterrupt, and remembers it where compiled code swallows the exception."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.default_int_handler(number, frame)

    def install(self) -> None:
        """Take the place of Python's own handler; no other one, and only from the main thread."""
        if _is_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self)


class StepInterrupted(KeyboardInterrupt):
    """A second Ctrl-C broke into a step: the engine cannot go on."""


def forget_interrupt() -> None:
    """The Ctrl-C that came has been dealt with, and ends nothing else."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, NotedInterrupt):
        handler.came = False


def raise_swallowed() -> None:
    """Raise the Ctrl-C that came to the command line and never rose: compiled code had lost its exception."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, NotedInterrupt) and handler.came and _is_main_thread():
        raise KeyboardInterrupt


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class HeldInterrupt:
    """Context manager; does nothing outside the main thread or where the application has its own SIGINT handler.

    ``notice`` is called when the first SIGINT is held. It runs inside the signal handler, so it may interrupt a write.
    """

    __slots__ = ("_active", "_notice", "_pending", "_raise")

    def __init__(self, notice: Callable[[], None] | None = None) -> None:
        self._notice = notice
        self._active = False
        self._pending = False
        self._raise: Callable[[int, FrameType | None], object] = signal.default_int_handler

    def __enter__(self) -> Self:
        if _is_main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if handler is signal.default_int_handler or isinstance(handler, NotedInterrupt):
                self._raise = handler
                self._active = True
                signal.signal(signal.SIGINT, self._remember)
        return self

    @property
    def came(self) -> bool:
        """Whether a SIGINT is held and will rise at the end."""
        return self._pending

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self._pending:
            try:
                self._raise(number, frame)
            except KeyboardInterrupt:
                raise StepInterrupted from None
        self._pending = True
        if self._notice is not None:
            self._notice()

    def __exit__(self, *exc: object) -> None:
        if not self._active:
            return
        self._active = False
        signal.signal(signal.SIGINT, self._raise)
        if self._pending:
            self._pending = False
            if not isinstance(exc[1], StepInterrupted):  # that one is on its way already, and says more
                raise KeyboardInterrupt
