"""Requests on an engine, stepped from here, so that what is between two steps is known."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from deepinfer_bench.disturbances import Clock, Collections
from deepinfer_bench.step_log import StepLog
from deepinfer_bench.workload import greedy
from deepinfer_core import LLM
from deepinfer_core.errors import EngineError
from deepinfer_core.interrupts import HeldInterrupt
from deepinfer_core.requests.prompts import inputs_of
from deepinfer_core.requests.request import Request


class Bench:
    """An engine with a log of its steps. Context manager: the log hears steps inside."""

    def __init__(self, llm: LLM, clock: Clock = time.perf_counter_ns) -> None:
        self.llm, self.clock = llm, clock
        self.engine = llm.built.engine
        self.log = StepLog(clock, llm.times, self._num_graphs)

    def _num_graphs(self) -> int:
        graphs = self.engine.graphs
        return 0 if graphs is None else graphs.num_recorded

    def __enter__(self) -> Self:
        self.engine.meter.observers.append(self.log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.log in self.engine.meter.observers:
            self.engine.meter.observers.remove(self.log)


class Round:
    """Requests that run. Context manager: what has not ended at the end is aborted."""

    def __init__(self, bench: Bench, prompts: Sequence[Sequence[int]], tokens: int, collections: Collections) -> None:
        self._bench, self._collections = bench, collections
        self._run = bench.llm.run(inputs_of([list(prompt) for prompt in prompts], greedy(tokens)))
        self.requests: list[Request] = []

    def __enter__(self) -> Self:
        self.requests = self._run.start()
        self._check()
        self._bench.log.begin([request.token_ids for request in self.requests])
        return self

    def step(self) -> None:
        """One call of the engine. Ctrl-C rises between two steps only."""
        with HeldInterrupt():
            self._bench.engine.step()
        self._collections.stepped()

    def prefill(self) -> None:
        """Step until every request has its first token."""
        while not all(request.token_ids for request in self.requests):
            self.step()
            self._check()

    def decode(self, steps: int) -> None:
        """Step until so many more steps are committed."""
        log = self._bench.log
        goal = len(log.stamps) + steps
        while len(log.stamps) < goal:
            self.step()
            if any(request.finished for request in self.requests):
                self._check()
                raise EngineError(
                    "a request ended inside the measured window",
                    reason="it gave more tokens than its limit allows for",
                    remedy="this is a fault of the benchmark; report it",
                )

    def finish(self) -> None:
        """Step until all requests have ended."""
        while not all(request.finished for request in self.requests):
            self.step()
            self._check()

    def _check(self) -> None:
        for request in self.requests:
            if request.error is not None:
                raise request.error
        if self._bench.log not in self._bench.engine.meter.observers:
            raise EngineError("the log of steps failed", remedy="this is a fault of the benchmark; report it")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run.stop()
