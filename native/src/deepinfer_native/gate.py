"""One engine call of a core at a time."""

from __future__ import annotations

import threading
from typing import NoReturn

from deepinfer_native.errors import BusyError


class Gate:
    """The structs that calls fill belong to one engine thread at a time; a second one is refused and never waits.

    ``with gate``, or, where a step's time counts, ``if not gate.try_enter(False): gate.refuse()``, then `leave`.
    """

    __slots__ = ("leave", "try_enter")

    def __init__(self) -> None:
        lock = threading.Lock()
        self.try_enter = lock.acquire
        self.leave = lock.release

    @staticmethod
    def refuse() -> NoReturn:
        raise BusyError("another thread is inside an engine call of this core", field="core")

    def __enter__(self) -> None:
        if not self.try_enter(False):
            self.refuse()

    def __exit__(self, *_: object) -> None:
        self.leave()
