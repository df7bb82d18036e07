"""The step loop: schedule, launch, commit the step before, sample (``spec/engine.md`` 5.2).

At depth 2 the host schedules and launches step n while the device still runs step n - 1, and commits n - 1 while the
device runs n. At depth 1 each step is committed before the next one. The engine owns the native core and the caches
while it runs; it knows no model, no device and no sampler.

A step that fails ends its own requests and nothing else: they are aborted in the core while the step is in flight, so
that the commit of an empty result gives back what they held (transition 19 of ``spec/engine.md`` 1.3). The step before
it is committed first, so a request keeps the tokens that it got before the fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Self

from deepinfer_core.assembly.prefix import PrefixCacheReport, reset_prefixes
from deepinfer_core.engine_lock import EngineLock
from deepinfer_core.errors import DeepInferError, DeviceLost, EngineError
from deepinfer_core.graphs import DecodeGraphs
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.pipeline import CurveFeedback, Machinery, PhaseTimes, StepFault, StepRecord
from deepinfer_core.pipeline.collect import collect, nothing, refused, settle
from deepinfer_core.pipeline.draft_report import DraftCounter, DraftReport
from deepinfer_core.pipeline.faults import internal_fault, nothing_runs, without_frames
from deepinfer_core.pipeline.forward import forward
from deepinfer_core.pipeline.meter import StepMeter, StepObserver
from deepinfer_core.pipeline.record import launch, name_requests
from deepinfer_core.pipeline.sample import sample
from deepinfer_core.pipeline.schedule import schedule
from deepinfer_core.requests.admission import Admission
from deepinfer_core.requests.emission import Emitter
from deepinfer_core.requests.named_requests import NamedRequests, explained
from deepinfer_core.requests.request import Request, explain_too_long
from deepinfer_core.requests.submission import check_params
from deepinfer_core.step_choice import LocalChooser, StepChooser
from deepinfer_core.structured.manager import WAIT_S, GrammarManager
from deepinfer_core.structured.report import GrammarReport
from deepinfer_core.text.tokenizer import Tokenizer

MAX_EMPTY_STEPS = 4
"""Schedule calls in a row that may come back with nothing to run and nothing ended; more is a fault."""


class Engine:
    """Runs requests to their end. ``step`` is called by whoever waits for results, from one thread at a time."""

    def __init__(
        self,
        core: Any,
        parts: Machinery,
        tokenizer: Tokenizer,
        *,
        grammars: GrammarManager,
        observers: Sequence[StepObserver] = (),
        chooser: StepChooser | None = None,
    ) -> None:
        """``core``: a ``deepinfer_native.Core``; its depth is the engine's. The engine closes it in :meth:`close`.

        ``chooser``: says what kind of step comes next; None: this rank alone does. ``grammars``: structured output.
        """
        self.core = core
        self._chooser = chooser or LocalChooser()
        self.times: PhaseTimes = parts.times
        self._parts: Machinery | None = parts
        self._depth: int = core.config.depth
        parts.join(core.config)
        self._open: deque[StepRecord] = deque()
        """Launched and not committed, oldest first."""
        self._ring: deque[StepRecord] = deque(maxlen=self._depth + 1)
        """Keeps the results of a step alive until the step after it is committed."""
        self.meter = StepMeter(self.times, observers)
        self.feedback: CurveFeedback | None = None  # told of decode steps, where their times correct a curve
        self._drafts = DraftCounter(core.config.num_draft)
        self._live: dict[int, Request] = {}
        self._grammars = grammars
        self.emitter = Emitter(
            self._live,
            tokenizer,
            core.finish,
            partial(explain_too_long, core.config),
            grammars.running.ended,
            with_drafts=core.config.num_draft > 0,
            with_sum_smaller=parts.with_sum_smaller,
        )
        self._mask = partial(grammars.running.mask, fail=self.emitter.end_in_grammar)
        self._admission = Admission(core, self._live, self.emitter.end, grammars)
        self._named = NamedRequests(parts.parts_maker)
        self.lock = EngineLock()
        self._empty_steps = 0
        self.broken: DeepInferError | None = None
        self._closed = False
        self._last_stats = core.stats()

    def check_params(self, params: SamplingParams) -> None:
        """Raise a DeepInferError for parameters that the sampler of this engine cannot honour."""
        if self._parts is not None and not self.lock.is_inherited:  # else submitting says what is wrong
            check_params(self._parts, params, self.core.config.replay_mode)
            with self.lock:
                self._named.make(params)

    def submit(self, request: Request) -> None:
        """Queue a checked request; its other samples follow when its prompt is computed.

        Raises InvalidParameter, or EngineError after a fault that the engine cannot recover from.
        """
        with self.lock:
            self._require_usable()
            self._named.add(request)
            self._admission.submit(request)

    def step(self) -> bool:
        """Run one step; results go to the inboxes of their requests. False when nothing is left to do.

        At depth 2 the tokens of a decode step come with the call after its own.
        """
        with self.lock:
            self.lock.require_outermost()
            if self._parts is None:
                return False
            self._admission.pump()
            if self._live and not self._grammars.waiting.holds_up:
                self._guarded(self._advance)
            if not self._grammars.waiting:
                return bool(self._live)
            if self._live and not self._grammars.waiting.holds_up:
                return True
        self._grammars.waiting.wait(WAIT_S)
        return True

    def flush(self) -> None:
        """Commit the step in flight, if there is one: afterwards the caches hold what the committed tokens say.

        For whoever reads cache memory on the host, changes weights, or wants the tokens that are on their way.
        """
        with self.lock:
            self.lock.require_outermost()
            self._guarded(self._flush)

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix. Requests go on; what they computed until now is not offered later.

        Raises ConfigError without a prefix cache, EngineError while requests share blocks.
        """
        with self.lock:
            self._require_usable()
            self._guarded(self._flush)
            reset_prefixes(self.core)

    @property
    def prefix_cache_report(self) -> PrefixCacheReport:
        """What the prefix cache did so far, also after the end; all zero without one."""
        return PrefixCacheReport.of(self.stats())

    @property
    def draft_report(self) -> DraftReport:
        """What speculation did so far, also after the end; all zero without drafts."""
        return self._drafts.report(self.stats())

    @property
    def graphs(self) -> DecodeGraphs | None:
        """Those that decode steps run in; None: there are none, or the engine is closed."""
        return None if self._parts is None else self._parts.decode

    def stats(self) -> Any:
        """Counters of the core, those of its end where it has ended."""
        from deepinfer_native.errors import StaleHandleError

        with suppress(StaleHandleError):  # closed, maybe just now by another thread
            self._last_stats = self._last_stats if self.lock.is_inherited else self.core.stats()
        return self._last_stats

    def abort(self, requests: Iterable[Request]) -> None:
        """End requests with reason ``abort``; those that have ended stay as they are."""
        if self.lock.is_inherited:
            return
        with self.lock:
            if self._closed:
                return
            requests = list(requests)
            self._admission.abort(requests)
            live = [r for r in requests if r.uid in self._live]
            if live:
                self._drop(live, "abort")
            if not self._live:
                self._guarded(self._flush)

    def close(self) -> None:
        """Abort what runs and give everything back. Idempotent; nothing in a forked copy of the process."""
        if self.lock.is_inherited:
            return
        with self.lock:
            if self._closed:
                return
            if self._live:
                self._drop(list(self._live.values()), "abort")
            self._admission.stop("abort", None)
            self._grammars.waiting.close()
            self._guarded(self._flush)
            self._closed = True
            self._parts = None  # and with it the caches
            self._ring.clear()
            self._last_stats = self.core.stats()
            self.core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def grammar_report(self) -> GrammarReport:
        """What structured output has cost so far, also after the end."""
        return self._grammars.report()

    def require_grammar_engine(self) -> None:
        """Raises the typed error of whatever keeps structured output away: nothing is installed, or cannot be used."""
        with self.lock:
            self._grammars.waiting.require_engine()

    @property
    def num_live(self) -> int:
        """Requests that were submitted and have not ended, those that wait for a prompt or a grammar included."""
        return len(self._live) + len(self._admission)

    def in_flight(self) -> tuple[StepRecord, ...]:
        """Steps that were launched and not committed, oldest first. From any thread."""
        return tuple(self._open.copy())  # in one go, as far as other threads can tell

    def between_steps(self, look: Callable[[Any], Any]) -> Any:
        """``look(core)``; None where another thread runs a step just now, and for an engine that has ended."""
        if not self.lock.acquire_now():
            return None
        try:
            return None if self._closed or self.broken is not None else look(self.core)
        finally:
            self.lock.release()

    def _require_usable(self) -> None:
        self.lock.require_outermost()
        if self._closed:
            raise EngineError("the engine is closed", remedy="make a new LLM")
        if self.broken is not None:
            raise EngineError(
                "the engine stopped after a fault", reason=self.broken.what, remedy="make a new LLM"
            ) from self.broken

    def _guarded(self, work: Callable[[Machinery], None]) -> None:
        """Do ``work``; what it raises is no plugin's fault, and the engine cannot go on after it. Nothing in a step."""
        parts = self._parts
        if parts is None or self.broken is not None or self.lock.is_nested:
            return
        try:
            work(parts)
        except DeepInferError as err:
            self._break(err)
        except Exception as err:  # the native core or the glue around it: nothing that a request did
            self._break(internal_fault(err))

    def _advance(self, parts: Machinery) -> None:
        """One call of ``spec/engine.md`` 5.2: A(n), B(n), D(n - 1), C(n); a prefill step is committed in place."""
        record = schedule(self._chooser, self.core, parts.times)
        if record is None:
            if self._open:
                self._flush(parts)  # what it brings may be what the next step needs
            else:
                self._nothing_scheduled()
            return
        self._empty_steps = 0
        previous = self._open[-1] if self._open else None
        self._open.append(record)
        self._ring.append(record)
        if record.is_prefill:
            requests = [r for r in map(self._live.get, record.uids) if r]
            record.scores_prompts = any(r.params.prompt_logprobs for r in requests)
            for request in requests:
                request.scheduled()
            if self.core.config.prefix_cache:
                self._note_hits(record)
        record.named = self._named.of_step(record, self._live)
        parts.times.overlapped_steps += previous is not None
        try:
            launch(forward, parts, self.core, record, previous)
            if previous is not None:
                self._commit(parts, previous)
            if record.fault is None:
                launch(sample, parts, self.core, record, self._mask)
            if self._depth == 1 or record.is_prefill or record.fault is not None:
                self._commit(parts, record)
            if not self._live:
                self._flush(parts)
        except Exception:
            raise  # the core's own failure; `_guarded` ends everything
        except BaseException:  # Ctrl-C or the exit of the process: no step may stay open
            while self._open:
                self._abandon(parts, self._open[0], None)
            raise

    def _flush(self, parts: Machinery) -> None:
        while self._open:
            self._commit(parts, self._open[0])

    def _commit(self, parts: Machinery, record: StepRecord) -> None:
        """Phase D: results to the core, news to the requests. A step without results ends its requests."""
        times = parts.times
        try:
            sampled, bad = collect(parts, record)
            self._drafts.add(sampled, len(record.ended_prompts))
            t0 = perf_counter_ns()
            try:
                events = self.core.commit(record.step_id, sampled)
            except ValueError as err:  # a contract violation: refused, and the core is unchanged
                raise refused(parts, err) from err
        except StepFault as fault:
            error = fault.error(record.step_id)
            name_requests(record, fault, error, self._live)
            if isinstance(fault.cause, DeviceLost):
                raise error from fault  # no step runs any more, and no cache holds what it held
            try:
                self._abandon(parts, record, error)
            except Exception:  # the core cannot go on either; what it says now only follows from the fault
                raise error from fault
            return
        self._open.popleft()
        self.core.step_done(record.step_id)
        self._chooser.settle(self.core)
        self._grammars.running.committed(record, sampled.draft_ids)
        t1 = perf_counter_ns()
        self._admission.prompts_done(record.ended_prompts)
        self.emitter.emit(events, {record.uids[row]: explained(record, row, why) for row, why in bad.items()})
        self._admission.settle()
        t2 = perf_counter_ns()
        times.commit += t1 - t0
        times.emit += t2 - t1
        self.meter.committed(record, t2)
        if self.feedback is not None:
            self.feedback.observe(record)

    def _note_hits(self, record: StepRecord) -> None:
        """What the prefix cache saved of the prompts that start in this step."""
        saved, again = record.outputs.hit_tokens.tolist(), record.outputs.replayed_tokens.tolist()
        for uid, hit, replayed in zip(record.uids, saved, again, strict=True):
            request = self._live.get(uid)
            # After a preemption a request finds its own blocks: no saving of its prompt.
            if hit and request is not None and not request.token_ids:
                request.cached_tokens, request.replayed_tokens = hit, replayed

    def _nothing_scheduled(self) -> None:
        before = len(self._live)
        self.emitter.emit(self.core.poll_events())
        self._admission.settle()
        if len(self._live) < before:
            self._empty_steps = 0
            return
        self._empty_steps += 1
        if self._empty_steps > MAX_EMPTY_STEPS:
            self._empty_steps = 0
            self._drop(list(self._live.values()), "engine", nothing_runs(before, self.core.stats()))

    def _abandon(self, parts: Machinery, record: StepRecord, error: DeepInferError | None) -> None:
        """Close the oldest open step without its results: its requests end with ``error``, or as aborted."""
        for uid in record.uids:
            if uid in self._live:
                self.emitter.end(self._live[uid], "abort" if error is None else "engine", error=error)
        settle(parts)
        self.core.abort(record.uids)
        events = self.core.commit(record.step_id, nothing(record, self.core.config.num_draft))
        self._open.popleft()
        self.core.step_done(record.step_id)
        self._chooser.settle(self.core)
        self.emitter.emit(events)  # others may have ended in this step without running
        self._admission.settle()

    def _drop(self, requests: list[Request], reason: str, error: DeepInferError | None = None) -> None:
        """End ``requests`` here and in the core, between two steps."""
        for request in requests:
            self.emitter.end(request, reason, error=error)
        self.core.abort([r.uid for r in requests])
        if not self.lock.is_nested:  # else the step that this interrupts does it
            self.emitter.emit(self.core.poll_events())
            self._admission.settle()

    def _break(self, error: DeepInferError) -> None:
        """The core cannot go on: every request ends, and no new one is taken."""
        self.broken = without_frames(error)
        self._open.clear()
        self._admission.stop("engine", error)
        for request in list(self._live.values()):
            self.emitter.end(request, "engine", error=error)
