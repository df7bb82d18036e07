"""A call that gives a result, recorded: each launch computes the result anew where it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Capture = Callable[[Callable[[], object]], Callable[[], None]]
Result = TypeVar("Result")


class Recorded(Generic[Result]):
    """The graph of a call. ``latest`` is what the call returned when it was recorded: it lies in the graph's memory,
    and every launch computes it anew."""

    latest: Result

    def __init__(self, capture: Capture, call: Callable[[], Result]) -> None:
        self._first: list[Result] = []
        is_first = True

        def kept() -> None:
            nonlocal is_first
            self.latest = call()
            if is_first:
                self._first.append(self.latest)
                is_first = False

        self.launch = capture(kept)

    def take_first(self) -> Result:
        """What the run before the recording returned, once."""
        return self._first.pop()
