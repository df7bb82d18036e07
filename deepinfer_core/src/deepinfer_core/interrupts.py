"""Ctrl-C between steps, not inside one.

A KeyboardInterrupt may rise at any bytecode; in the middle of a step it would leave the scheduler with a step that
nobody commits. While :class:`HeldInterrupt` is active the first SIGINT is remembered and raised at the end; a second
one is raised at once, for the case that a step takes too long.

SIGTERM, by which a service is asked to end, is on the command line a Ctrl-C that nothing goes on after.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self


class NotedInterrupt:
    """A SIGINT handler that raises KeyboardInterrupt, and remembers it where compiled code swallows the exception.

    :ivar came: a SIGINT or SIGTERM came. :ivar terminates: it was SIGTERM, or that came as well.
    """

    def __init__(self) -> None:
        self.came = False
        self.terminates = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.default_int_handler(number, frame)

    def install(self) -> None:
        """Take the place of Python's own handler, and of none for SIGTERM; no other one, and only from the main thread.
        SIGINT stays ignored where it is, as in the background jobs of scripts."""
        if not _is_main_thread():
            return
        before = signal.getsignal(signal.SIGINT)
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self)
        if before in (signal.default_int_handler, signal.SIG_IGN) and (
            signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        ):
            signal.signal(signal.SIGTERM, Termination(self))


class Termination:
    """A SIGTERM handler that does what Ctrl-C would do here: whoever holds that back holds this back."""

    def __init__(self, noted: NotedInterrupt) -> None:
        self.noted = noted

    def __call__(self, _number: int, frame: FrameType | None) -> None:
        self.noted.terminates = True
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else self.noted)(signal.SIGINT, frame)


class StepInterrupted(KeyboardInterrupt):
    """A second Ctrl-C broke into a step: the engine cannot go on."""


def forget_interrupt() -> None:
    """The Ctrl-C that came has been dealt with, and ends nothing else. Raises KeyboardInterrupt if SIGTERM came."""
    noted = _noted()
    if noted is not None:
        if noted.terminates:
            raise KeyboardInterrupt
        noted.came = False


def raise_swallowed() -> None:
    """Raise the Ctrl-C that came to the command line and never rose: compiled code had lost its exception."""
    noted = _noted()
    if noted is not None and noted.came and _is_main_thread():
        raise KeyboardInterrupt


def _noted() -> NotedInterrupt | None:
    """What the command line installed, if it did."""
    handler, other = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    if isinstance(handler, NotedInterrupt):
        return handler
    return other.noted if handler is signal.SIG_IGN and isinstance(other, Termination) else None


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class HeldInterrupt:
    """Context manager; does nothing outside the main thread or where the application has its own SIGINT handler. Where
    SIGINT is ignored, it holds a SIGTERM that the command line handles.

    ``notice`` is called when the first SIGINT is held. It runs inside the signal handler, so it may interrupt a write.
    """

    __slots__ = ("_active", "_notice", "_number", "_pending", "_raise")

    def __init__(self, notice: Callable[[], None] | None = None) -> None:
        self._notice = notice
        self._active = False
        self._pending = False
        self._number = signal.SIGINT
        self._raise: Callable[[int, FrameType | None], object] = signal.default_int_handler

    def __enter__(self) -> Self:
        if _is_main_thread():
            is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            number = signal.SIGTERM if is_ignored else signal.SIGINT
            handler = signal.getsignal(number)
            if handler is signal.default_int_handler or isinstance(handler, (NotedInterrupt, Termination)):
                self._number, self._raise, self._active = number, handler, True
                signal.signal(number, self._remember)
        return self

    @property
    def came(self) -> bool:
        """Whether a signal is held and will rise at the end."""
        return self._pending

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if isinstance(self._raise, Termination):
            self._raise.noted.terminates = True
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
        signal.signal(self._number, self._raise)
        if self._pending:
            self._pending = False
            if not isinstance(exc[1], StepInterrupted):  # that one is on its way already, and says more
                raise KeyboardInterrupt
