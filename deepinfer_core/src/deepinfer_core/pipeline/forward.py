"""Phase B: everything up to the model's last hidden rows. Nothing here may wait for the device."""

from __future__ import annotations

import copy
from time import perf_counter_ns
from typing import Any

from deepinfer_core.pipeline.feed import feed
from deepinfer_core.pipeline.machinery import Machinery
from deepinfer_core.pipeline.record import StepRecord
from deepinfer_core.records import Pool, SchedulerOutputs


def forward(parts: Machinery, core: Any, record: StepRecord, previous: StepRecord | None) -> None:
    """Launch the model over the rows of ``record``; fills ``inputs`` and ``hidden``. Raises StepFault.

    ``previous`` is the step in flight, whose rows this one may continue; None when everything is committed.
    """
    times, at = parts.times, parts.at
    with parts.guard():
        _prologue(parts, record.outputs)
        t0 = perf_counter_ns()
        with at.call("core.pack"):
            packed = core.pack(record.step_id)
        t1 = perf_counter_ns()
        with at.call("backend.bind_inputs"):
            bound = parts.bound(packed)
        # What the next phases put in must not change the record of the core, which a backend may hand out as it is.
        record.inputs = copy.copy(packed) if bound is packed and previous is not None else bound
        t2 = perf_counter_ns()
        if previous is not None:
            feed(parts, record, previous)
        t3 = perf_counter_ns()
        run = parts.model.forward if record.is_prefill or parts.decode is None else parts.decode
        with at.call("model.forward"):
            record.hidden = run(record.inputs, parts.caches)
            at.expect_rows("model.forward", record.hidden, record.num_tokens)
        t4 = perf_counter_ns()
    times.pack += t1 - t0
    times.bind += t2 - t1
    times.feed += t3 - t2
    times.forward += t4 - t3
    record.forward_ns = t4 - t3


def _prologue(parts: Machinery, outputs: SchedulerOutputs) -> None:
    """Zero, then clone, then forward (``spec/engine.md`` 2.12)."""
    zero, slots, blocks = outputs.zero_slots, outputs.clone_slots, outputs.clone_blocks
    if zero is not None and len(zero):
        with parts.at.call("caches.zero"):
            for pool, units in _by_pool(zero.tolist()).items():
                parts.caches.zero(pool, [unit for (unit,) in units])
    if (slots is not None and len(slots)) or (blocks is not None and len(blocks)):
        with parts.at.call("caches.clone"):
            for pool, units in _by_pool([] if slots is None else slots.tolist()).items():
                parts.caches.clone(pool, [(src, dst) for src, dst in units])
            pairs = [] if blocks is None else [(src, dst) for src, dst in blocks.tolist() if dst]
            if pairs:
                parts.caches.clone("main", pairs)


def _by_pool(rows: list[list[int]]) -> dict[str, list[list[int]]]:
    pools: dict[str, list[list[int]]] = {}
    for pool, *units in rows:
        pools.setdefault(Pool(pool).name.lower(), []).append(units)
    return pools
