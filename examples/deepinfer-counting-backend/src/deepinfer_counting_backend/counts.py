"""Count the calls of ops, and the time that they take on the host."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class OpCount:
    """What became of one op."""

    provider: str
    """The distribution whose code runs."""
    calls: int = 0
    seconds: float = 0.0
    """Of the host. On ``cpu`` an op is done when its call returns, so this is its whole time."""


def counted(op: Callable[..., Any], count: OpCount) -> Callable[..., Any]:
    """``op``, which adds each call to ``count``, one that raises too."""

    @functools.wraps(op)  # keeps the signature, which a backend's ops must have as the contract says
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return op(*args, **kwargs)
        finally:
            count.calls += 1
            count.seconds += time.perf_counter() - start

    return call
