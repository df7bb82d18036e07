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
from attrs import define, fields, frozen

from deepinfer_core.errors import DeepInferError, EngineError
from deepinfer_core.interfaces import Backend, Caches, Model, Sampler
from deepinfer_core.plugins.failure import blame, exception_text
from deepinfer_core.records import Pool, SamplerOutput, SchedulerOutputs, StepKind
from deepinfer_core.sampled import NO_ROWS, BadRow, checked_output, wrong_step_return


class Packer(Protocol):
    """What this module needs of the native core."""

    def pack(self, step_id: int) -> Any: ...
    def pack_sampler(self, step_id: int) -> Any: ...


@frozen
class Owners:
    """Who made the parts, as a fault names them: ``first (acme-sampler 0.1)``. Empty: not known."""

    backend: str = ""
    model: str = ""
    sampler: str = ""

    def of(self, op: str) -> str:
        """The owner of a call such as ``model.forward``; caches are the backend's, and the core has no owner."""
        part = op.partition(".")[0]
        return str(getattr(self, "backend" if part == "caches" else part, ""))


class StepFault(Exception):
    """A plugin call of a step failed. ``op`` names the call, ``owner`` the plugin."""

    def __init__(self, op: str, cause: Exception, owner: str = "") -> None:
        super().__init__(f"{op}: {cause}")
        self.op = op
        self.cause = cause
        self.owner = owner

    def error(self, step_id: int) -> DeepInferError:
        """The failure as the requests of the step report it."""
        cause = self.cause
        details: dict[str, object] = {"op": self.op, "exception": type(cause).__name__, "step_id": step_id}
        if self.owner:
            details["plugin"] = self.owner
        if isinstance(cause, DeepInferError):
            details["code"] = cause.code
            details.update(cause.details)
            reason = f"{cause.code}: {cause.what}" + (f" ({cause.reason})" if cause.reason else "")
        else:
            reason = f"{exception_text(cause)} (raised at {blame(cause)})"
        remedy = "the requests of this step end; run with --debug for the traceback"
        if self.owner:
            remedy = f"report it to the authors of {self.owner}, with the traceback that --debug prints"
        error = EngineError(
            f"{self.op}{f' of {self.owner}' if self.owner else ''} failed in step {step_id}",
            reason=reason,
            remedy=getattr(cause, "remedy", "") or remedy,
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
        self,
        backend: Backend,
        model: Model,
        sampler: Sampler,
        caches: Caches,
        vocab_size: int,
        times: PhaseTimes,
        owners: Owners | None = None,
    ) -> None:
        self._backend = backend
        self._model = model
        self._sampler = sampler
        self._caches = caches
        self._vocab_size = vocab_size
        self._times = times
        self._owners = owners or Owners()

    def run(self, outputs: SchedulerOutputs, core: Packer) -> tuple[SamplerOutput, Mapping[int, BadRow]]:
        """``(tokens of a scheduled step, status of the rows without one)``. Raises StepFault."""
        times = self._times
        step_id = int(outputs.step_id)
        n = int(outputs.num_reqs)
        is_prefill = int(outputs.kind) == StepKind.PREFILL
        self._prologue(outputs)
        t0 = perf_counter_ns()
        with self._named("core.pack"):
            packed = core.pack(step_id)
        t1 = perf_counter_ns()
        with self._named("backend.bind_inputs"):
            inputs = self._bound(packed)
        t2 = perf_counter_ns()
        with self._named("model.forward"):
            hidden = self._model.forward(inputs, self._caches)
            self._expect_rows("model.forward", hidden, int(outputs.num_batched_tokens))
        t3 = perf_counter_ns()
        times.pack += t1 - t0
        times.bind += t2 - t1
        times.forward += t3 - t2
        if is_prefill and not outputs.is_last_chunk.any():
            # No row of this step ends its prompt: there is nothing to sample.
            return self.nothing(n), NO_ROWS
        with self._named("core.pack_sampler"):
            rows = core.pack_sampler(step_id)
        with self._named("backend.bind_inputs"):
            wanted = self._bound(rows)
        with self._named("model.forward"):  # whose result cannot be indexed otherwise
            if is_prefill or n != int(outputs.num_batched_tokens):
                hidden = hidden[wanted.selected_rows]
        t4 = perf_counter_ns()
        with self._named("model.logits"):
            logits = self._model.logits(hidden)
            self._expect_rows("model.logits", logits, n)
        t5 = perf_counter_ns()
        with self._named("sampler.sample"):
            sampled = checked_output(
                self._sampler.sample(logits, wanted),
                n,
                vocab_size=self._vocab_size,
                owner=self._owners.sampler,
                to_host=self._backend.to_host,
            )
        t6 = perf_counter_ns()
        times.pack += t4 - t3
        times.logits += t5 - t4
        times.sample += t6 - t5
        return sampled

    def refused(self, err: ValueError) -> StepFault:
        """The fault of a result that the core's commit refused: the sampler's, where its record is what is wrong."""
        op = "sampler.sample" if getattr(err, "contract", None) == "SamplerOutput" else "core.commit"
        return StepFault(op, err, self._owners.of(op))

    def _prologue(self, outputs: SchedulerOutputs) -> None:
        """Zero, then clone, then forward (``spec/engine.md`` 2.12)."""
        zero, slots, blocks = outputs.zero_slots, outputs.clone_slots, outputs.clone_blocks
        if zero is not None and len(zero):
            with self._named("caches.zero"):
                for pool, units in _by_pool(zero.tolist()).items():
                    self._caches.zero(pool, [unit for (unit,) in units])
        if (slots is not None and len(slots)) or (blocks is not None and len(blocks)):
            with self._named("caches.clone"):
                for pool, units in _by_pool([] if slots is None else slots.tolist()).items():
                    self._caches.clone(pool, [(src, dst) for src, dst in units])
                pairs = [] if blocks is None else [(src, dst) for src, dst in blocks.tolist() if dst]
                if pairs:
                    self._caches.clone("main", pairs)

    def _bound(self, record: Any) -> Any:
        bound = self._backend.bind_inputs(record)
        if bound is None:
            raise wrong_step_return("backend.bind_inputs", self._owners.backend, "None", type(record).__name__)
        return bound

    def _expect_rows(self, op: str, tensor: Any, rows: int) -> None:
        if not hasattr(tensor, "__len__"):
            got = "None" if tensor is None else type(tensor).__name__
            raise wrong_step_return(op, self._owners.of(op), got, f"a tensor of {rows} rows")
        if len(tensor) != rows:
            raise EngineError(f"{op} returned {len(tensor)} rows, expected {rows}", details={"op": op})

    @contextmanager
    def _named(self, op: str) -> Iterator[None]:
        try:
            yield
        except Exception as err:  # the plugin boundary: stored in the fault and reported by name
            raise StepFault(op, err, self._owners.of(op)) from err

    @staticmethod
    def nothing(n: int) -> SamplerOutput:
        """A result for ``n`` rows whose tokens nobody reads."""
        return SamplerOutput(
            sampled_ids=np.zeros(n, dtype=np.int32),
            sampled_logprob=np.zeros(n, dtype=np.float32),
            row_status=np.zeros(n, dtype=np.int8),
        )


def _by_pool(rows: list[list[int]]) -> dict[str, list[list[int]]]:
    pools: dict[str, list[list[int]]] = {}
    for pool, *units in rows:
        pools.setdefault(Pool(pool).name.lower(), []).append(units)
    return pools
