"""The lock of an engine: its threads take turns, and a forked copy of its process is told that it has no engine.

A fork copies memory, and of the threads only the one that forked. A lock that another thread holds stays locked in the
copy for ever, and so do those of the libraries: whoever used the engine there would wait without an end.
"""

from __future__ import annotations

import os
import threading

from deepinfer_core.errors import EngineError


class EngineLock:
    """Re-entrant, for the threads of the process that made it. ``with`` raises EngineError in another one."""

    __slots__ = ("_lock", "_pid", "release")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self.release = self._lock.release

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked copy of the process that made it."""
        return os.getpid() != self._pid

    def acquire_now(self) -> bool:
        """Take it if nobody else has it; False if not, and in a forked copy."""
        return not self.is_inherited and self._lock.acquire(blocking=False)

    def __enter__(self) -> None:
        if self.is_inherited:
            raise EngineError(
                f"the engine belongs to process {self._pid}, and this is a fork of it",
                reason="threads of the engine and of its libraries, and what they had locked, are not carried over",
                remedy="make the LLM in the process that uses it; with multiprocessing, use get_context('spawn')",
                details={"pid": os.getpid(), "owner": self._pid},
            )
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
