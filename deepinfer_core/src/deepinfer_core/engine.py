"""The step loop at depth 1: schedule, run, commit, emit (``spec/engine.md`` 5.1).

The engine owns the native core and the caches while it runs; it knows no model, no device and no sampler. A step that
fails ends its own requests and nothing else: they are aborted in the core while the step is in flight, so that the
commit of an empty result gives back what they held (transition 19 of ``spec/engine.md`` 1.3).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Sequence
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Self

from deepinfer_core.emission import Emitter
from deepinfer_core.errors import DeepInferError, EngineError, InvalidParameter
from deepinfer_core.interfaces import Backend, Caches, Model, Sampler, StepObserver
from deepinfer_core.records import SchedulerOutputs, StepKind
from deepinfer_core.requests import Request, too_long
from deepinfer_core.samples import WaitingSamples
from deepinfer_core.steps import Owners, PhaseTimes, StepFault, StepRunner
from deepinfer_core.tokenizer import Tokenizer

MAX_EMPTY_STEPS = 4
"""Schedule calls in a row that may come back with nothing to run and nothing ended; more is a fault."""


class Engine:
    """Runs requests to their end. ``step`` is called by whoever waits for results, from one thread at a time."""

    def __init__(
        self,
        core: Any,
        backend: Backend,
        model: Model,
        sampler: Sampler,
        caches: Caches,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        observers: Sequence[StepObserver] = (),
        owners: Owners | None = None,
    ) -> None:
        """``core``: a ``deepinfer_native.Core``; the engine closes it in :meth:`close`.

        ``vocab_size``: ids that may be sampled, the smaller of model and tokenizer. ``owners``: the plugins
        that a fault names.
        """
        self.core = core
        self.times = PhaseTimes()
        self._runner: StepRunner | None = StepRunner(backend, model, sampler, caches, vocab_size, self.times, owners)
        self._observers = list(observers)
        self._live: dict[int, Request] = {}
        self._emitter = Emitter(self._live, tokenizer, core.finish, self._explain_too_long)
        self._waiting = WaitingSamples(self._start_sample, self._emitter.end)
        self._lock = threading.RLock()
        self._empty_steps = 0
        self._broken: DeepInferError | None = None
        self._closed = False

    def submit(self, request: Request) -> None:
        """Queue a checked request; its other samples follow when its prompt is computed.

        Raises InvalidParameter, or EngineError after a fault that the engine cannot recover from.
        """
        with self._lock:
            self._require_usable()
            self._submit(request)
            self._waiting.add(request)

    def _submit(self, request: Request) -> None:
        params = request.params
        try:
            request.uid = self.core.submit(
                request.prompt_token_ids,
                max_tokens=params.max_tokens,
                eos_ids=() if params.ignore_eos else tuple(request.eos_ids),
                stop_ids=params.stop_token_ids,
                ignore_eos=params.ignore_eos,
                min_tokens=params.min_tokens,
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=params.top_k,
                min_p=params.min_p,
                seed=request.seed or 0,
            )
        except ValueError as err:  # an argument that the core refuses; it is unchanged
            raise InvalidParameter(str(err)) from err
        self._live[request.uid] = request

    def _start_sample(self, first: Request, other: Request) -> None:
        try:
            self._submit(other)
        except InvalidParameter as err:
            self._emitter.end(other, "input", error=err)

    def step(self) -> bool:
        """Run one step; results go to the inboxes of their requests. False when nothing is left to do."""
        with self._lock:
            if not self._live or self._runner is None:
                return False
            try:
                self._step(self._runner)
            except DeepInferError as err:
                self._break(err)
            except Exception as err:  # the native core or the glue around it: nothing that a request did
                self._break(_internal(err))
            return bool(self._live)

    def abort(self, requests: Iterable[Request]) -> None:
        """End requests with reason ``abort``; those that have ended stay as they are."""
        with self._lock:
            if self._closed:
                return
            requests = list(requests)
            self._waiting.abort(requests)
            live = [r for r in requests if r.uid in self._live]
            if live:
                self._drop(live, "abort")

    def close(self) -> None:
        """Abort what runs and give everything back. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self.abort(list(self._live.values()))
            self._waiting.stop("abort", None)
            self._closed = True
            self._runner = None  # and with it the caches
            self.core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def num_live(self) -> int:
        """Requests that were submitted and have not ended, samples that wait for their prompt included."""
        return len(self._live) + len(self._waiting)

    def _require_usable(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed", remedy="make a new LLM")
        if self._broken is not None:
            raise EngineError(
                "the engine stopped after a fault", reason=self._broken.what, remedy="make a new LLM"
            ) from self._broken

    def _step(self, runner: StepRunner) -> None:
        times = self.times
        t0 = perf_counter_ns()
        outputs = self.core.schedule_local()
        times.schedule += perf_counter_ns() - t0
        if not outputs.num_reqs:
            self._nothing_scheduled()
            return
        self._empty_steps = 0
        step_id = int(outputs.step_id)
        uids: list[int] = outputs.seq_uid.tolist()
        try:
            sampled, bad = runner.run(outputs, self.core)
            t1 = perf_counter_ns()
            try:
                events = self.core.commit(step_id, sampled)
            except ValueError as err:  # a contract violation: refused, and the core is unchanged
                raise runner.refused(err) from err
        except StepFault as fault:
            error = fault.error(step_id)
            try:
                self._abandon(step_id, uids, error)
            except Exception:  # the core cannot go on either; what it says now only follows from the fault
                raise error from fault
            return
        except Exception:
            raise  # the core's own failure; `step` ends everything
        except BaseException:  # Ctrl-C or the exit of the process: the step must not stay open
            self._abandon(step_id, uids, None)
            raise
        self.core.step_done(step_id)
        if self._waiting:
            self._waiting.prompts_done(_ended_prompts(outputs, uids))
        t2 = perf_counter_ns()
        self._emitter.emit(events, {uids[row]: status for row, status in bad.items()})
        if self._waiting:
            self._waiting.settle()
        t3 = perf_counter_ns()
        times.commit += t2 - t1
        times.emit += t3 - t2
        self._count(outputs, t3 - t0)

    def _explain_too_long(self, request: Request) -> DeepInferError:
        config = self.core.config
        return too_long(
            request,
            block_size=config.block_size,
            usable_blocks=config.num_blocks - 1,
            prompt_limit=config.max_model_len - 1,
        )

    def _nothing_scheduled(self) -> None:
        before = len(self._live)
        self._emitter.emit(self.core.poll_events())
        self._waiting.settle()
        if len(self._live) < before:
            self._empty_steps = 0
            return
        self._empty_steps += 1
        if self._empty_steps > MAX_EMPTY_STEPS:
            stats = self.core.stats()
            error = EngineError(
                f"no step could be scheduled for {before} requests",
                reason=f"scheduler state: {stats}",
                remedy="this is a bug of the scheduler; report it with this text",
                details={"requests": before, "stats": str(stats)},
            )
            self._empty_steps = 0
            self._drop(list(self._live.values()), "engine", error)

    def _abandon(self, step_id: int, uids: list[int], error: DeepInferError | None) -> None:
        """Close a step that brought no result: its requests end with ``error``, or as aborted."""
        for uid in uids:
            if uid in self._live:
                self._emitter.end(self._live[uid], "abort" if error is None else "engine", error=error)
        self.core.abort(uids)
        events = self.core.commit(step_id, StepRunner.nothing(len(uids)))
        self.core.step_done(step_id)
        self._emitter.emit(events)  # others may have ended in this step without running
        self._waiting.settle()

    def _drop(self, requests: list[Request], reason: str, error: DeepInferError | None = None) -> None:
        """End ``requests`` here and in the core, between two steps."""
        for request in requests:
            self._emitter.end(request, reason, error=error)
        self.core.abort([r.uid for r in requests])
        self._emitter.emit(self.core.poll_events())
        self._waiting.settle()

    def _break(self, error: DeepInferError) -> None:
        """The core cannot go on: every request ends, and no new one is taken."""
        self._broken = error
        self._waiting.stop("engine", error)
        for request in list(self._live.values()):
            self._emitter.end(request, "engine", error=error)

    def _count(self, outputs: SchedulerOutputs, ns: int) -> None:
        self.times.steps += 1
        tokens = int(outputs.num_batched_tokens)
        kind = StepKind(outputs.kind)
        if kind == StepKind.PREFILL:
            self.times.prefill_tokens += tokens
        else:
            self.times.decode_tokens += tokens
        for observer in list(self._observers):
            try:
                observer.step(kind.name.lower(), int(outputs.num_reqs), tokens, ns * 1e-9)
            except Exception as err:  # an observer must not change the run; it is dropped, and that is said once
                self._observers.remove(observer)
                warnings.warn(f"W_OBSERVER: {type(observer).__name__} failed and is off: {err}", stacklevel=2)


def _ended_prompts(outputs: SchedulerOutputs, uids: Sequence[int]) -> list[int]:
    """The requests whose prompt ends in this step."""
    if int(outputs.kind) != StepKind.PREFILL:
        return []
    return [uid for uid, is_last in zip(uids, outputs.is_last_chunk.tolist(), strict=True) if is_last]


def _internal(err: Exception) -> EngineError:
    error = EngineError(
        "the step loop failed",
        reason=f"{type(err).__name__}: {err}",
        remedy="this is a bug; report it with the traceback that --debug prints",
        details={"exception": type(err).__name__},
    )
    error.__cause__ = err
    return error
