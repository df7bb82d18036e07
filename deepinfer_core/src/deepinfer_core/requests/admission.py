"""How a request comes to the scheduler: at once, or when what it waits for is there.

A request with a grammar waits until that is compiled (``spec/engine.md`` 1.3, PENDING); a further sample of a prompt
waits until the prompt of the first one is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

from deepinfer_core.errors import DeepInferError, InvalidParameter
from deepinfer_core.requests.finish_detail import FinishDetail
from deepinfer_core.requests.request import Request
from deepinfer_core.requests.samples import End, WaitingSamples
from deepinfer_core.requests.submission import fork, submit
from deepinfer_core.structured.manager import GrammarManager


class Admission:
    """Requests that are not in the core yet, and the way into it.

    :param live: Requests in the core by uid; those that enter are put there.
    :param end: Finishes a request and hands it out: reason, detail, error.
    """

    def __init__(self, core: Any, live: MutableMapping[int, Request], end: End, grammars: GrammarManager) -> None:
        self._core = core
        self._live = live
        self._end = end
        self._grammars = grammars
        self._samples = WaitingSamples(self._start_sample, end)

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._samples) + len(self._grammars.waiting)

    def submit(self, request: Request) -> None:
        """Raises InvalidParameter, and what keeps a grammar engine away."""
        if request.params.structured is None:
            self._start(request)
        else:
            self._grammars.waiting.add(request, request.params.structured)
            self.pump()

    def pump(self) -> None:
        """Look at the grammars that compile, once a step."""
        self._grammars.waiting.pump(self._start_ready, self._end)

    def prompts_done(self, uids: Iterable[int]) -> None:
        """The prompts of these requests are in the caches: their samples start."""
        if self._samples:
            self._samples.prompts_done(uids)

    def settle(self) -> None:
        """What happens to the samples of requests that ended before their prompt was done."""
        if self._samples:
            self._samples.settle()

    def abort(self, requests: Iterable[Request]) -> None:
        """End those of ``requests`` that wait."""
        requests = list(requests)
        self._samples.abort(requests)
        self._grammars.waiting.abort(requests, self._end)

    def stop(self, reason: str, error: DeepInferError | None) -> None:
        """End all that wait."""
        self._samples.stop(reason, error)
        self._grammars.waiting.stop(self._end, reason, error)

    def _start(self, request: Request) -> None:
        self._enter(request)
        self._samples.add(request)

    def _start_ready(self, request: Request) -> None:
        """The grammar of ``request`` and its other samples is there; some may have been given up meanwhile."""
        try:
            if not request.finished:
                self._start(request)
                return
            for other in request.others:
                if not other.finished:
                    self._enter(other)
        except InvalidParameter as err:
            for sample in request.samples:
                if not sample.finished and not sample.uid:
                    self._end(sample, "input", FinishDetail.NONE, err)

    def _start_sample(self, first: Request, other: Request) -> None:
        """Over copies of the caches of ``first`` if it goes on; from the prompt otherwise."""
        uid = fork(self._core, first, other)
        if uid is not None:
            other.uid = uid
            self._entered(other)
            return
        try:
            self._enter(other)
        except InvalidParameter as err:
            self._end(other, "input", FinishDetail.NONE, err)

    def _enter(self, request: Request) -> None:
        request.uid = submit(self._core, request)
        self._entered(request)

    def _entered(self, request: Request) -> None:
        self._live[request.uid] = request
        self._grammars.running.started(request)
