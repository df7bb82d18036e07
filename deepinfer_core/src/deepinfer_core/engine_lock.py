"""The lock of an engine: its threads take turns, and who may not enter at all is told so.

A thread may come back while it is in a step: a signal handler or a finaliser that the collector calls runs between any
two lines of it, and plugins and observers run inside. Ending requests is possible there; what would need a step of its
own is refused.

At the end of the process no further step begins. Python kills daemon threads where they next need the interpreter, and
one that is in a library's compiled code then takes the process down with it, with a status that says it crashed.

A fork copies memory, and of the threads only the one that forked. A lock that another thread holds stays locked in the
copy for ever, and so do those of the libraries: whoever used the engine there would wait without an end.
"""

from __future__ import annotations

import atexit
import os
import threading
from weakref import WeakSet

from deepinfer_core.errors import EngineError

EXIT_WAIT_S = 10
"""Seconds that the end of the process waits for the step that another thread is in."""

_locks: WeakSet[EngineLock] = WeakSet()


@atexit.register
def _take_all() -> None:
    """Before daemon threads are killed. Whoever waits for a lock from here on waits in the interpreter."""
    for lock in list(_locks):
        lock.take_for_good()


class EngineLock:
    """Re-entrant, for the threads of the process that made it. ``with`` raises EngineError in another one."""

    __slots__ = ("__weakref__", "_depth", "_lock", "_pid", "release")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._depth = 0  # of ``with`` in the thread that has it
        self.release = self._lock.release
        _locks.add(self)

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked copy of the process that made it."""
        return os.getpid() != self._pid

    @property
    def is_nested(self) -> bool:
        """Whether the thread that has it was inside when it came. Ask with the lock held."""
        return self._depth > 1

    def require_outermost(self) -> None:
        """Raises EngineError if this thread was inside when it came. Ask with the lock held."""
        if self.is_nested:
            raise EngineError(
                "the engine was called from inside one of its own steps",
                reason="a plugin, an observer, a signal handler or a finaliser did, in the thread that runs the step",
                remedy="call it from another thread, or once the call that runs the step has returned",
            )

    def acquire_now(self) -> bool:
        """Take it if nobody else has it; False if not, and in a forked copy."""
        return not self.is_inherited and self._lock.acquire(blocking=False)

    def take_for_good(self) -> None:
        """The process ends: no other thread gets it any more, once the step that runs is over."""
        if not self.is_inherited:
            self._lock.acquire(timeout=EXIT_WAIT_S)

    def __enter__(self) -> None:
        if self.is_inherited:
            raise EngineError(
                f"the engine belongs to process {self._pid}, and this is a fork of it",
                reason="threads of the engine and of its libraries, and what they had locked, are not carried over",
                remedy="make the LLM in the process that uses it; with multiprocessing, use get_context('spawn')",
                details={"pid": os.getpid(), "owner": self._pid},
            )
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        self.release()
