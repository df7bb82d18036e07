"""Further samples of a prompt: they wait until the prompt of the first one is computed (``spec/engine.md`` 2.11).

Then the core forks the first one, whose cache blocks they share, and each runs the last prompt token again for a first
token of its own. A sample whose first one ends before that runs by itself, unless the whole prompt was refused or
cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from deepinfer_core.errors import DeepInferError
from deepinfer_core.requests.finish_detail import FinishDetail
from deepinfer_core.requests.request import Request

OF_THE_PROMPT = frozenset({"abort", "too_long"})
"""Ends of the first sample that hold for all: the caller gave the prompt up, or it can never run."""

End = Callable[[Request, str, FinishDetail, DeepInferError | None], object]


class WaitingSamples:
    """Samples that the core does not know yet, by the uid of their first one.

    :param start: Brings a sample into the core; gets the first sample and the one to start.
    :param end: Finishes a sample and hands it out: reason, detail, error.
    """

    def __init__(self, start: Callable[[Request, Request], object], end: End) -> None:
        self._start = start
        self._end = end
        self._by_uid: dict[int, Request] = {}

    def __len__(self) -> int:
        """Samples that wait."""
        return sum(not other.finished for first in self._by_uid.values() for other in first.others)

    def __bool__(self) -> bool:
        return bool(self._by_uid)

    def add(self, first: Request) -> None:
        """``first`` was submitted; its other samples wait for its prompt."""
        if first.others:
            self._by_uid[first.uid] = first

    def prompts_done(self, uids: Iterable[int]) -> None:
        """The prompts of these requests are in the caches: their samples start."""
        for uid in uids:
            first = self._by_uid.pop(uid, None)
            if first is not None:
                self._start_all(first)

    def settle(self) -> None:
        """What happens to the samples of those that ended before their prompt was done."""
        for uid, first in list(self._by_uid.items()):
            if not first.finished:
                continue
            del self._by_uid[uid]
            if first.finish_reason in OF_THE_PROMPT:
                self._end_all(first, first.finish_reason, first.finish_detail, first.error)
            else:
                self._start_all(first)

    def abort(self, requests: Iterable[Request]) -> None:
        """End those of ``requests`` that wait here."""
        for request in requests:
            if request.uid == 0 and not request.finished and request.head.uid in self._by_uid:
                self._end(request, "abort", FinishDetail.NONE, None)

    def stop(self, reason: str, error: DeepInferError | None) -> None:
        """End all."""
        for first in self._by_uid.values():
            self._end_all(first, reason, FinishDetail.NONE, error)
        self._by_uid.clear()

    def _start_all(self, first: Request) -> None:
        for other in first.others:
            if not other.finished:
                self._start(first, other)

    def _end_all(self, first: Request, reason: str, detail: FinishDetail, error: DeepInferError | None) -> None:
        for other in first.others:
            if not other.finished:
                self._end(other, reason, detail, error)
