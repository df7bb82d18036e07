"""The scheduler core: one object for one `di_core`, records in and out."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy.typing as npt
from attrs import frozen

from deepinfer_contracts import (
    AbortStatus,
    FinishReason,
    InputMetadata,
    InputMetadataV41,
    SamplerInputs,
    SamplerOutput,
    SchedulerOutputs,
    StepMode,
)
from deepinfer_native.config import INPUTS, CoreConfig, to_c
from deepinfer_native.cost import CostModel
from deepinfer_native.cost import to_c as cost_to_c
from deepinfer_native.errors import ArgumentError, StaleHandleError
from deepinfer_native.events import EventRing, EventView
from deepinfer_native.gate import Gate
from deepinfer_native.library import call, check, ffi, last_error, lib, misfit
from deepinfer_native.request import Bias, Ids, RequestWriter
from deepinfer_native.sampler_output import TurnWriter
from deepinfer_native.sharing import Sharing
from deepinfer_native.stats import CoreStats, from_c
from deepinfer_native.transfer import Transfers
from deepinfer_native.verify import curve_to_c, lengths_to_c
from deepinfer_native.views import RecordReader

# What a step calls, looked up once.
schedule_local, pack, pack_sampler = lib.di_schedule_local, lib.di_pack, lib.di_pack_sampler
commit_info, step_done = lib.di_commit_info, lib.di_step_done
NULL = ffi.NULL


@frozen
class Probe:
    """Whether a prefill step is due, wanted and allowed (``spec/engine.md`` 2.2, steps 1 and 2).

    ``point``: 0 none, 1 ANY, 2 ALL. ``in_flight``: launched steps that are not committed. ``decode_since_prefill``: d
    of the text, equal on all ranks of a group.
    """

    point: int
    want: bool
    has_running: bool
    has_unfinished: bool
    burst_reached: bool
    in_flight: int
    decode_since_prefill: int = 0


class Core(Transfers, Sharing):
    """Queue, pools, step records and packers of one engine (``spec/engine.md`` 1 to 4).

    `submit` and `abort` may be called from any thread; everything else belongs to one engine thread at a time, a
    second one gets BusyError. Records are views over memory of the core, valid for ``depth + 1`` calls of the same
    kind. A call that raises has changed nothing, except InternalError, after which the core can only be looked at and
    closed.
    """

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.limits = config.limits
        settings, _keep = to_c(config)
        out = ffi.new("di_core **")
        check(lib.di_core_create(settings, out, ffi.NULL))
        # The memory goes when the last array over it is gone, not earlier: arrays hold this handle.
        self._handle: Any = ffi.gc(out[0], lib.di_core_destroy)
        layouts = ffi.new("di_layouts const **")
        check(lib.di_core_layouts(self._handle, layouts))
        shown = config.ratios, layouts[0]
        self._steps = RecordReader("di_scheduler_outputs", SchedulerOutputs, "steps", *shown)
        self._sampler = RecordReader("di_sampler_inputs", SamplerInputs, "sampler", *shown)
        self._inputs: RecordReader[Any] = (
            RecordReader("di_input_metadata_v41", InputMetadataV41, "inputs", *shown)
            if config.inputs == "InputMetadataV41"
            else RecordReader("di_input_metadata", InputMetadata, "inputs", *shown)
        )
        self._output = TurnWriter()
        self._events = EventRing()
        self._gate = Gate()
        self._base = (
            ffi.addressof(self._inputs.struct, "base") if self.config.inputs == INPUTS[1] else self._inputs.struct
        )

    @property
    def _core(self) -> Any:
        if self._handle is None:
            raise StaleHandleError("the core is closed")
        return self._handle

    # --- requests: any thread ----------------------------------------------------------------------------------

    def submit(
        self,
        prompt_ids: Ids,
        *,
        max_tokens: int,
        eos_ids: Ids = (),
        stop_ids: Ids = (),
        ignore_eos: bool = False,
        min_tokens: int = 0,
        priority: int = 0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int = 0,
        forced: Ids = (),
        prefix_lookup: bool = True,
        bias: Bias = (),
        top_logprobs: int = 0,
        logprobs_raw: bool = False,
        prompt_logprobs: bool = False,
        replay_mode: int = -1,
    ) -> int:
        """Queue one request; returns its uid, which is never used again.

        ``stop_ids`` and, unless ``ignore_eos``, ``eos_ids`` end the request, but not within the first ``min_tokens``
        tokens, where they are suppressed. ``priority`` -8 .. 7, smaller goes first. ``forced[i]`` replaces the i-th
        output token (-1 = free). ``prefix_lookup``: use cached blocks of an equal prefix, if the core keeps them; what
        is computed is offered to others either way. ``bias``: at most 1024 ``(token, value)`` pairs of [-100, 100].
        ``top_logprobs``: 0 .. 1000 alternatives. ``logprobs_raw``: of the model's own values. ``prompt_logprobs``:
        with the first token's event; needs ``prefix_lookup=False`` and replay mode 0. ``replay_mode``: a ``ReplayMode``
        up to the core's; -1 = the core's. Raises ArgumentError naming the field, CapacityError when memory is short.
        """
        request = RequestWriter(
            {"prompt": prompt_ids, "eos_ids": eos_ids, "stop_ids": stop_ids, "forced": forced},
            {
                "max_tokens": max_tokens,
                "min_tokens": min_tokens,
                "ignore_eos": ignore_eos,
                "priority": priority,
                "temperature": temperature,
                "top_p": top_p,
                "top_k": top_k,
                "min_p": min_p,
                "repetition_penalty": repetition_penalty,
                "presence_penalty": presence_penalty,
                "frequency_penalty": frequency_penalty,
                "seed": seed,
                "prefix_lookup": prefix_lookup,
                "top_logprobs": top_logprobs,
                "logprobs_raw": logprobs_raw,
                "prompt_logprobs": prompt_logprobs,
                "replay_mode": replay_mode,
            },
            bias,
        )
        uid = ffi.new("uint64_t *")
        check(lib.di_submit(self._core, request.struct, uid))
        return int(uid[0])

    def abort(self, uids: Sequence[int]) -> list[AbortStatus]:
        """Ask for the end of requests. The terminal event comes with a later commit or `poll_events`."""
        try:
            names = ffi.new("uint64_t[]", list(uids))
        except (TypeError, OverflowError) as error:
            raise ArgumentError(f"{uids!r}: {error}", field="uids") from error
        status = ffi.new("uint8_t[]", len(names))
        check(lib.di_abort(self._core, names, len(names), status))
        return [AbortStatus(s) for s in status]

    @property
    def unfinished(self) -> int:
        """Requests that are not terminal, queued ones included."""
        count = ffi.new("int64_t *")
        check(lib.di_unfinished(self._core, count))
        return int(count[0])

    # --- steps: the engine thread ------------------------------------------------------------------------------

    def probe(self) -> Probe:
        """Look at the queue and the pools; queued submits and aborts are carried out first."""
        p = ffi.new("di_probe_out *")
        check(lib.di_probe(self._core, p))
        return Probe(
            p.point,
            bool(p.want),
            bool(p.has_running),
            bool(p.has_unfinished),
            bool(p.burst_reached),
            p.in_flight,
            p.decode_since_prefill,
        )

    def schedule(self, mode: StepMode) -> SchedulerOutputs:
        """Make one step. With flag EMPTY nothing was scheduled: it is no step, and the next one gets its ``step_id``.

        Raises OrderError when ``depth`` steps are in flight, or ``step_done`` lags behind.
        """
        with self._gate:
            core = self._core
            call(lib.di_schedule, core, mode, self._steps.struct)
            return self._steps.read(core)

    def schedule_local(self) -> SchedulerOutputs:
        """The step of an engine with one rank: prefill at its points and when nothing can be decoded, else decode.

        A PROMPT engine makes prefill steps only, a COMPLETION engine decode steps only.
        """
        gate, steps = self._gate, self._steps
        if not gate.try_enter(False):
            gate.refuse()
        try:
            core = self._handle or self._core
            code = schedule_local(core, steps.struct)
            if code:
                raise last_error(code)
            return steps.read(core)
        finally:
            gate.leave()

    def pack(self, step_id: int) -> InputMetadata | InputMetadataV41:
        """Inputs of the newest launched step. With drafts in a pipeline they hold what the step before verifies:
        make them before its commit (OrderError)."""
        gate = self._gate
        if not gate.try_enter(False):
            gate.refuse()
        try:
            core = self._handle or self._core
            try:
                code = pack(core, step_id, self._base)
            except (TypeError, OverflowError) as error:
                raise misfit(error) from error
            if code:
                raise last_error(code)
            record: InputMetadata | InputMetadataV41 = self._inputs.read(core)
        finally:
            gate.leave()
        return record

    def pack_sampler(self, step_id: int) -> SamplerInputs:
        """Sampler inputs of the newest launched step; with drafts in a pipeline after the commit of the step before."""
        gate = self._gate
        if not gate.try_enter(False):
            gate.refuse()
        try:
            core = self._handle or self._core
            try:
                code = pack_sampler(core, step_id, self._sampler.struct)
            except (TypeError, OverflowError) as error:
                raise misfit(error) from error
            if code:
                raise last_error(code)
            return self._sampler.read(core)
        finally:
            gate.leave()

    def commit(self, step_id: int, output: SamplerOutput | None) -> EventView:
        """Append the tokens of a step and say what happened to its requests.

        ``output`` may be None if no row ends its prompt. Steps are committed in order (OrderError). A row whose
        ``row_status`` is not OK ends its request with ENGINE behind its accepted drafts. ContractError names the field.
        """
        gate, events = self._gate, self._events
        if not gate.try_enter(False):
            gate.refuse()
        try:
            struct = NULL if output is None else self._output.fill(output)
            core = self._handle or self._core
            events.sync_pins(core)
            try:
                code = commit_info(core, step_id, struct, events.batch, events.info)
            except (TypeError, OverflowError) as error:
                raise misfit(error) from error
            if code:
                raise last_error(code)
            return events.view(core)
        finally:
            gate.leave()

    def step_done(self, step_id: int) -> None:
        """The device is done with every step up to this one: what they used may be handed out again."""
        try:
            code = step_done(self._handle or self._core, step_id)
        except (TypeError, OverflowError) as error:
            raise misfit(error) from error
        if code:
            raise last_error(code)

    def poll_events(self) -> EventView:
        """Terminal events that were decided outside a commit.

        As many as a batch holds; ``stats().queued_events`` says how many are left for the next call.
        """
        with self._gate:
            core = self._core
            self._events.sync_pins(core)
            check(lib.di_poll_events(core, self._events.batch))
            check(lib.di_event_last(core, self._events.info))
            return self._events.view(core)

    def finish(self, uid: int, reason: FinishReason, n_output: int) -> None:
        """End a request after ``n_output`` tokens (a stop string was found); later tokens are dropped.

        The terminal event comes with the next commit or `poll_events`. Raises NotFoundError if it is not live.
        """
        call(lib.di_finish, self._core, uid, reason, n_output)

    # --- time --------------------------------------------------------------------------------------------------

    def set_cost_model(self, model: CostModel, *, decode: CostModel | None = None) -> None:
        """Predict the time of steps from now on (``predicted_ns``), and cut prompts by the time budget of the config.

        ``model``: prefill steps, and decode steps too unless ``decode`` is given (``spec/engine.md`` 2.8). Corrections
        of `observe_step` start again. Raises ArgumentError naming the coefficient.
        """
        prefill = cost_to_c(model)
        call(lib.di_set_cost_model, self._core, prefill, prefill if decode is None else cost_to_c(decode))

    def observe_step(self, step_id: int, measured_ns: int) -> None:
        """How long a committed step took. With ``cost_feedback`` it corrects the predictions of its kind by at most 2.

        Raises OrderError for a step that is not committed, or not among the ``depth + 1`` newest.
        """
        call(lib.di_observe_step, self._core, step_id, measured_ns)

    # --- verification lengths ----------------------------------------------------------------------------------

    def set_verify_curve(self, sizes: Sequence[int], ms: Sequence[float]) -> None:
        """Times of a decode forward by graph size, for ``verify_lengths="confidence"`` (``spec/engine.md`` 7.1).

        ``sizes``: tokens, ascending, the last at least ``max_num_seqs * (num_draft + 1)``; ``ms``: above 0. Empty: no
        curve, so that every draft is verified, as before the first call. Corrections start again. Raises ArgumentError.
        """
        c_sizes, c_ms = curve_to_c(sizes, ms)
        call(lib.di_varlen_curve, self._core, c_sizes, c_ms, len(c_sizes))

    def observe_verify(self, graph: int, num_reqs: int, forward_ms: float, sampler_ms: float) -> None:
        """How long a decode step took: corrects the curve by medians (7.2). ``graph``: its graph size, of the curve."""
        timing = ffi.new("di_timing *")
        try:
            timing.graph, timing.num_reqs, timing.forward_ms, timing.sampler_ms = (
                graph,
                num_reqs,
                forward_ms,
                sampler_ms,
            )
        except (TypeError, OverflowError) as error:
            raise ArgumentError(f"an argument does not fit: {error}", field="timing") from error
        call(lib.di_varlen_observe, self._core, timing)

    def correct(self, step_id: int, seqlens_q: npt.ArrayLike) -> None:
        """Replace the lengths of the newest decode step by the device's (7.4).

        ``seqlens_q``: int32 ``[N]``, each 1 .. ``num_draft + 1``, in sum the step's tokens. After `pack` and the commit
        of the step before, and before `pack_sampler`, which follows them, as commit does. The arrays of the published
        record stay as they are. Raises ArgumentError or OrderError, and changes nothing then.
        """
        lengths = lengths_to_c(seqlens_q)
        call(lib.di_correct, self._core, step_id, lengths, len(lengths))

    # --- looking inside ----------------------------------------------------------------------------------------

    def stats(self) -> CoreStats:
        """Counters and pool levels."""
        out = ffi.new("di_stats_out *")
        check(lib.di_stats(self._core, out))
        return from_c(out)

    def audit(self) -> None:
        """Leak audit: with nothing live and every step done, every unit is free. Raises InternalError."""
        check(lib.di_audit(self._core, ffi.NULL))

    def check(self) -> None:
        """Compare every structure with every other. Raises InternalError."""
        check(lib.di_core_check(self._core, ffi.NULL))

    # --- life --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the core up. Idempotent. Its memory goes when no array over it is left. A call that another thread is
        in works with the handle that it took at its start."""
        self._handle = None
        self._events.close()
        for reader in (self._steps, self._inputs, self._sampler):
            reader.close()

    def __enter__(self) -> Core:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
