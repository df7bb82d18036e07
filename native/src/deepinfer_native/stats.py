"""Counters and pool levels of a core (``spec/engine.md`` 9.1)."""

from __future__ import annotations

from typing import Any

from attrs import fields, frozen

from deepinfer_contracts import FinishReason


@frozen
class PoolStats:
    """Units of one pool: blocks of ``main``, slots of the others. The null unit is not counted."""

    total: int
    free: int
    cached: int
    held: int
    limbo: int


@frozen
class CoreStats:
    """A copy of the core's counters; they only grow, the levels are of now."""

    main: PoolStats
    swa: PoolStats
    state: PoolStats
    draft: PoolStats
    waiting: int
    prefill: int
    running: int
    zombie: int
    handoff: int
    unfinished: int
    queued_events: int
    steps_prefill: int
    steps_decode: int
    tokens_prefill: int
    tokens_decode: int
    tokens_drafted: int
    tokens_accepted: int
    tokens_output: int
    holds: int
    preemptions: int
    aborts: int
    overrun_rows: int
    overrun_steps: int
    stale_rows: int
    event_ring_grown: int
    last_step: int
    committed: int
    done: int
    event_arenas: int
    poisoned: bool
    budget_overruns: int
    prefix_queries: int
    prefix_hit_tokens: int
    prefix_replayed_tokens: int
    prefix_evictions: int
    pins: int
    pinned_units: int
    finished: dict[FinishReason, int]


POOLS = ("main", "swa", "state", "draft")


def from_c(s: Any) -> CoreStats:
    """``di_stats_out`` -> CoreStats."""
    values: dict[str, Any] = {}
    for a in fields(CoreStats):
        if a.name in POOLS:
            p = getattr(s, a.name)
            values[a.name] = PoolStats(p.total, p.free, p.cached, p.held, p.limbo)
        elif a.name == "finished":
            values[a.name] = {r: int(s.finished[r]) for r in FinishReason if r != FinishReason.NONE}
        else:
            values[a.name] = getattr(s, a.name)
    values["poisoned"] = bool(values["poisoned"])
    return CoreStats(**values)
