"""One step on the device: pack, bind, forward, logits, sample (phases B and C of ``spec/engine.md`` 5.1).

This is where plugins run. Whatever they raise becomes a :class:`StepFault` that names the call, and what they return is
checked before the core sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np
from attrs import define, fields

from deepinfer_contracts import Pool, RowStatus, SamplerOutput, SchedulerOutputs, StepKind
from deepinfer_core.errors import DeepInferError, EngineError
from deepinfer_core.interfaces import Backend, Caches, Model, Sampler

NO_TOKEN = 3
"""Beside the values of ``RowStatus``: the sampler gave no token of the vocabulary for the row."""
NO_ROWS: Mapping[int, int] = {}


class Packer(Protocol):
    """What this module needs of the native core."""

    def pack(self, step_id: int) -> Any: ...
    def pack_sampler(self, step_id: int) -> Any: ...


class StepFault(Exception):
    """A plugin call of a step failed. ``op`` names the call."""

    def __init__(self, op: str, cause: Exception) -> None:
        super().__init__(f"{op}: {cause}")
        self.op = op
        self.cause = cause

    def error(self, step_id: int) -> DeepInferError:
        """The failure as the requests of the step report it."""
        cause = self.cause
        details: dict[str, object] = {"op": self.op, "exception": type(cause).__name__, "step_id": step_id}
        if isinstance(cause, DeepInferError):
            details["code"] = cause.code
            details.update(cause.details)
            reason = f"{cause.code}: {cause.what}" + (f" ({cause.reason})" if cause.reason else "")
        else:
            reason = f"{type(cause).__name__}: {cause}"
        error = EngineError(
            f"{self.op} failed in step {step_id}",
            reason=reason,
            remedy=getattr(cause, "remedy", "") or "the requests of this step end; run with --debug for the traceback",
            details=details,
        )
        error.__cause__ = cause
        return error


@define
class PhaseTimes:
    """Nanoseconds spent in each phase since the start, and what was done in them."""

    schedule: int = 0
    pack: int = 0
    bind: int = 0
    forward: int = 0
    logits: int = 0
    sample: int = 0
    commit: int = 0
    emit: int = 0
    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0

    def as_record(self) -> dict[str, int]:
        return {item.name: getattr(self, item.name) for item in fields(PhaseTimes)}


class StepRunner:
    """Runs the device part of steps. Holds no request state."""

    def __init__(
        self, backend: Backend, model: Model, sampler: Sampler, caches: Caches, vocab_size: int, times: PhaseTimes
    ) -> None:
        self._backend = backend
        self._model = model
        self._sampler = sampler
        self._caches = caches
        self._vocab_size = vocab_size
        self._times = times

    def run(self, outputs: SchedulerOutputs, core: Packer) -> tuple[SamplerOutput, Mapping[int, int]]:
        """``(tokens of a scheduled step, status of the rows without one)``. Raises StepFault."""
        times = self._times
        step_id = int(outputs.step_id)
        n = int(outputs.num_reqs)
        is_prefill = int(outputs.kind) == StepKind.PREFILL
        self._prologue(outputs)
        t0 = perf_counter_ns()
        with _named("core.pack"):
            packed = core.pack(step_id)
        t1 = perf_counter_ns()
        with _named("backend.bind_inputs"):
            inputs = self._backend.bind_inputs(packed)
        t2 = perf_counter_ns()
        with _named("model.forward"):
            hidden = self._model.forward(inputs, self._caches)
            _expect_rows("model.forward", hidden, int(outputs.num_batched_tokens))
        t3 = perf_counter_ns()
        times.pack += t1 - t0
        times.bind += t2 - t1
        times.forward += t3 - t2
        if is_prefill and not outputs.is_last_chunk.any():
            # No row of this step ends its prompt: there is nothing to sample.
            return self.nothing(n), NO_ROWS
        with _named("core.pack_sampler"):
            rows = core.pack_sampler(step_id)
        with _named("backend.bind_inputs"):
            wanted = self._backend.bind_inputs(rows)
        with _named("model.forward"):  # whose result cannot be indexed otherwise
            if is_prefill or n != int(outputs.num_batched_tokens):
                hidden = hidden[wanted.selected_rows]
        t4 = perf_counter_ns()
        with _named("model.logits"):
            logits = self._model.logits(hidden)
            _expect_rows("model.logits", logits, n)
        t5 = perf_counter_ns()
        with _named("sampler.sample"):
            sampled = self._checked(self._sampler.sample(logits, wanted), n)
        t6 = perf_counter_ns()
        times.pack += t4 - t3
        times.logits += t5 - t4
        times.sample += t6 - t5
        return sampled

    def _prologue(self, outputs: SchedulerOutputs) -> None:
        """Zero, then clone, then forward (``spec/engine.md`` 2.12)."""
        zero, slots, blocks = outputs.zero_slots, outputs.clone_slots, outputs.clone_blocks
        if zero is not None and len(zero):
            with _named("caches.zero"):
                for pool, units in _by_pool(zero.tolist()).items():
                    self._caches.zero(pool, [unit for (unit,) in units])
        if (slots is not None and len(slots)) or (blocks is not None and len(blocks)):
            with _named("caches.clone"):
                for pool, units in _by_pool([] if slots is None else slots.tolist()).items():
                    self._caches.clone(pool, [(src, dst) for src, dst in units])
                pairs = [] if blocks is None else [(src, dst) for src, dst in blocks.tolist() if dst]
                if pairs:
                    self._caches.clone("main", pairs)

    def _checked(self, sampled: SamplerOutput, n: int) -> tuple[SamplerOutput, Mapping[int, int]]:
        """``sampled`` with every row that has no valid token marked in ``row_status``, and these rows."""
        ids = np.asarray(sampled.sampled_ids, dtype=np.int32).reshape(-1)
        if len(ids) > n:
            raise EngineError(f"the sampler returned {len(ids)} tokens for {n} requests")
        status = sampled.row_status
        valid = len(ids) == n and int(ids.min()) >= 0 and int(ids.max()) < self._vocab_size
        if valid and status is not None and not np.any(status):
            return sampled, NO_ROWS
        full = np.full(n, -1, dtype=np.int32)
        full[: len(ids)] = ids
        row_status = np.zeros(n, dtype=np.int8)
        if status is not None:
            row_status[: len(status)] = np.asarray(status, dtype=np.int8)[:n]
        lost = ((full < 0) | (full >= self._vocab_size)) & (row_status == RowStatus.OK)
        row_status[lost] = NO_TOKEN  # for the error text only; the contract knows no such status
        bad = {row: int(row_status[row]) for row in np.flatnonzero(row_status).tolist()}
        row_status[lost] = RowStatus.NO_ALLOWED_TOKEN
        full[row_status != RowStatus.OK] = 0
        logprob = np.zeros(n, dtype=np.float32)
        if sampled.sampled_logprob is not None:
            given = np.asarray(sampled.sampled_logprob, dtype=np.float32)[:n]
            logprob[: len(given)] = np.where(row_status[: len(given)] == RowStatus.OK, given, 0)
        return SamplerOutput(sampled_ids=full, sampled_logprob=logprob, row_status=row_status), bad

    @staticmethod
    def nothing(n: int) -> SamplerOutput:
        """A result for ``n`` rows whose tokens nobody reads."""
        return SamplerOutput(
            sampled_ids=np.zeros(n, dtype=np.int32),
            sampled_logprob=np.zeros(n, dtype=np.float32),
            row_status=np.zeros(n, dtype=np.int8),
        )


@contextmanager
def _named(op: str) -> Iterator[None]:
    try:
        yield
    except Exception as err:  # the plugin boundary: stored in the fault and reported by name
        raise StepFault(op, err) from err


def _expect_rows(op: str, tensor: Any, rows: int) -> None:
    if len(tensor) != rows:
        raise EngineError(f"{op} returned {len(tensor)} rows, expected {rows}", details={"op": op})


def _by_pool(rows: list[list[int]]) -> dict[str, list[list[int]]]:
    pools: dict[str, list[list[int]]] = {}
    for pool, *units in rows:
        pools.setdefault(Pool(pool).name.lower(), []).append(units)
    return pools
