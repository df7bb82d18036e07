"""The engine's calls in the order of a pipelined engine (``spec/engine.md`` 5.2), with a clock between them:

    schedule n | pack n | commit n-1 | emit n-1 | done n-1 | pack_sampler n           a decode step
    schedule n | pack n | those of n-1 | pack_sampler n | commit n, emit n, done n    a prefill step, committed in place

With variable lengths the device's own come before ``pack_sampler``, and count there. ``emit`` reads the arrays of the
event batch that the engine reads. The device's answer is made after the last stamp.
"""

from __future__ import annotations

from time import perf_counter_ns as now
from typing import Any, NamedTuple

from deepinfer_contracts import EventFlags, StepKind
from deepinfer_native import Core

from .device import Answers
from .machine import switches

PHASES = ("schedule", "pack", "pack_sampler", "commit", "emit", "done")
LAST = int(EventFlags.LAST)


class Timed(NamedTuple):
    """Nanoseconds of one engine call by phase, and what it ran."""

    schedule: int
    pack: int
    pack_sampler: int
    commit: int
    emit: int
    done: int
    kind: int
    rows: int
    tokens: int  # query tokens
    switches: int  # times the system ran something else meanwhile


class Retired(NamedTuple):
    commit: int
    emit: int
    done: int


class Pipeline:
    """One core and a device that answers at once."""

    def __init__(self, core: Core, answers: Answers, corrects: bool = False) -> None:
        self.core = core
        self._corrects = corrects
        self._answers = answers
        self._open: tuple[int, Any] | None = None
        self.ended: list[int] = []  # uids whose last event was emitted; the caller empties it
        self.tokens = 0  # emitted

    def step(self) -> Timed | None:
        """One engine call. None when nothing could be scheduled; the step in flight is committed then."""
        core = self.core
        before_switches = switches()
        began = now()
        o = core.schedule_local()
        scheduled = now()
        if not o.num_reqs:
            self.flush()
            return None
        core.pack(o.step_id)
        packed = now()
        earlier = self._retire()
        lengths = o.seqlens_q.copy() if self._corrects and o.kind == StepKind.DECODE else None
        restarted = now()
        if lengths is not None:
            core.correct(o.step_id, lengths)
        core.pack_sampler(o.step_id)
        sampled = now()
        self._open = (o.step_id, self._answers.answer(o))
        own = self._retire() if o.kind == StepKind.PREFILL else Retired(0, 0, 0)
        return Timed(
            scheduled - began,
            packed - scheduled,
            sampled - restarted,
            earlier.commit + own.commit,
            earlier.emit + own.emit,
            earlier.done + own.done,
            int(o.kind),
            int(o.num_reqs),
            int(o.num_batched_tokens),
            switches() - before_switches,
        )

    def flush(self) -> None:
        """Commit what is in flight and take terminal events that were decided outside a commit."""
        self._retire()
        self._note(self.core.poll_events())

    def _retire(self) -> Retired:
        if self._open is None:
            return Retired(0, 0, 0)
        step_id, output = self._open
        self._open = None
        core = self.core
        began = now()
        events = core.commit(step_id, output)
        committed = now()
        read = (
            events.seq_uid,
            events.kind,
            events.flags,
            events.token_id,
            events.output_index,
            events.finish_reason,
        )
        emitted = now()
        core.step_done(step_id)
        ended = now()
        del read
        self._note(events)
        return Retired(committed - began, emitted - committed, ended - emitted)

    def _note(self, events: Any) -> None:
        if len(events):
            flags = events.flags
            self.tokens += int((events.token_id >= 0).sum())
            if flags.any():
                self.ended += events.seq_uid[(flags & LAST) != 0].tolist()
