"""How much host work the device waits for, at depth 1 and 2, with a device that only keeps time.

The device is an in-order queue of a forward and a sampling part: work starts when it was launched and everything before
it has ended. What it idles between two parts is the host work that is not hidden. The host sleeps while it waits, and
spins through the last part of the wait, so that a late wake-up of the system is not counted as its work.
"""

from __future__ import annotations

import time
from dataclasses import replace
from time import perf_counter_ns as now
from typing import Any

import attrs
import numpy as np

from deepinfer_contracts import StepKind
from deepinfer_native import Core

from .cases import VOCAB, Case
from .device import Answers
from .machine import quiet, switches

FORWARD_SHARE = 0.9  # of the device time of a step; the rest is sampling
SPIN_NS = 400_000


class Queue:
    """Device time in nanoseconds of the host's clock."""

    def __init__(self) -> None:
        self._free_at = now()
        self.idle_ns = 0

    def launch(self, ns: int) -> int:
        """When work that takes ``ns`` will have ended."""
        at = now()
        self.idle_ns += max(0, at - self._free_at)
        self._free_at = max(at, self._free_at) + ns
        return self._free_at


def wait(until: int) -> None:
    if (left := until - now() - SPIN_NS) > 0:
        time.sleep(left / 1e9)
    while now() < until:
        pass


class Engine:
    """The step loop of an engine, reduced to its calls into the core and the device."""

    def __init__(self, case: Case, depth: int, device_ns: int) -> None:
        self.depth = depth
        self.core = Core(attrs.evolve(case.config(), depth=depth))
        self.queue = Queue()
        self._answers = Answers(VOCAB, case.draft, case.accepted)
        self.set_device_time(device_ns)
        self._open: list[tuple[int, Any, int]] = []
        self.host_ns = 0

    def set_device_time(self, ns: int) -> None:
        """Of one step, from the next launch on."""
        self._forward_ns = int(ns * FORWARD_SHARE)
        self._sample_ns = ns - self._forward_ns

    def step(self) -> Any:
        """One engine call; returns the SchedulerOutputs."""
        began, waited = now(), 0
        o = self.core.schedule_local()
        if o.num_reqs:
            self.core.pack(o.step_id)
            self.queue.launch(self._forward_ns)
        if self.depth == 2 and self._open:
            waited += self._retire()
        if o.num_reqs:
            self.core.pack_sampler(o.step_id)
            ready = self.queue.launch(self._sample_ns)
            self._open.append((o.step_id, self._answers.answer(o), ready))
        if self._open and (self.depth == 1 or o.kind == StepKind.PREFILL):
            waited += self._retire()
        self.host_ns = now() - began - waited
        return o

    def _retire(self) -> int:
        """Nanoseconds waited for the device."""
        step_id, output, ready = self._open.pop(0)
        began = now()
        wait(ready)
        waited = now() - began
        e = self.core.commit(step_id, output)
        read = e.seq_uid, e.kind, e.flags, e.token_id, e.output_index, e.finish_reason
        self.core.step_done(step_id)
        del read
        return waited


def measure(seqs: int, draft: int, accepted: int, depth: int, steps: int, device_ms: float) -> dict[str, Any]:
    """Medians in microseconds over decode steps of ``seqs`` requests."""
    case = replace(Case("overlap", "overlap", seqs, draft=draft, accepted=accepted), steps=steps, warmup=64)
    engine = Engine(case, depth, device_ns=1000)
    prompt = np.arange(3, 3 + case.prompt, dtype=np.int32)
    for _ in range(seqs):
        engine.core.submit(prompt, max_tokens=case.longest_output, eos_ids=(2,))
    while engine.step().num_reqs < seqs or engine.core.stats().waiting:
        pass
    engine.set_device_time(int(device_ms * 1e6))
    table = []
    for i in range(steps + 8):
        idle, taken = engine.queue.idle_ns, switches()
        engine.step()
        if i >= 8 and switches() == taken:
            table.append((engine.queue.idle_ns - idle, engine.host_ns))
    engine.core.close()
    idle_us, host_us = np.median(np.array(table or [(0, 0)], float), axis=0) / 1e3
    return {
        "seqs": seqs,
        "k": draft,
        "depth": depth,
        "device_ms": device_ms,
        "steps": len(table),
        "host_us": round(float(host_us), 1),
        "not_hidden_us": round(float(idle_us), 1),
    }


def table(is_tiny: bool) -> list[dict[str, Any]]:
    with quiet():
        return [
            measure(n, k, accepted, depth, 5 if is_tiny else 100, 5.0)
            for n, k, accepted in (((4, 0, 0),) if is_tiny else ((1, 0, 0), (256, 0, 0), (256, 5, 2), (1024, 5, 2)))
            for depth in (1, 2)
        ]


def lines(rows: list[dict[str, Any]]) -> list[str]:
    out = [f"host work beside a device step of {rows[0]['device_ms']:.0f} ms, us"]
    out.append(f"{'requests':>8} {'K':>2} {'depth':>5} {'host':>9} {'not hidden':>11}")
    return out + [
        f"{r['seqs']:8d} {r['k']:2d} {r['depth']:5d} {r['host_us']:9.1f} {r['not_hidden_us']:11.1f}" for r in rows
    ]
