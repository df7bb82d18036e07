"""Records of the C core against those of the reference scheduler: every field of both."""

from __future__ import annotations

from native_driver import require
from reference import Scheduler, Settings
from reference.records import KIND_DECODE, Event, Outputs, Step

SCALARS = ("step_id", "kind", "flags", "num_reqs", "num_decode_reqs", "num_batched_tokens", "sum_qk", "min_k", "max_k")
ARRAYS = [
    "seq_uid",
    "generation",
    "row_slot",
    "seqlens_q",
    "seqlens_k",
    "cached",
    "inflight",
    "full_len",
    "is_last_chunk",
    "remap",
    "state_slot",
    "swa_slot",
    "draft_read_slot",
    "draft_write_slot",
    "swa_valid_start",
    "bt_offsets",
    "bt_ids",
    "bt_delta",
    "zero_slots",
    "clone_slots",
    "clone_blocks",
    "finished_uid",
    "finished_reason",
    "ignored_uid",
    "ignored_reason",
    "held_uid",
    "preempted_uid",
    "hit_tokens",
    "replayed_tokens",
]
EVENT = ["seq_uid", "kind", "flags", "token_id", "output_index", "prompt_len", "finish_reason", "drafted", "accepted"]
COUNTED = [
    "steps_prefill",
    "steps_decode",
    "tokens_prefill",
    "tokens_decode",
    "tokens_drafted",
    "tokens_accepted",
    "tokens_output",
    "holds",
    "preemptions",
    "aborts",
    "overrun_rows",
    "overrun_steps",
    "stale_rows",
]
POOLS = ("main", "swa", "state", "draft")


def compare_outputs(o, r: Outputs) -> None:
    """``o``: the core's record; ``r``: the reference's."""
    for name in SCALARS:
        require(getattr(o, name) == getattr(r, name), "step", r.step_id, name, getattr(o, name), getattr(r, name))
    for name in ARRAYS:
        ours, theirs = getattr(o, name).tolist(), getattr(r, name)
        require(ours == theirs, "step", r.step_id, name, ours, theirs)


def compare_inputs(m, r: Outputs, step: Step, settings: Settings) -> None:
    """Tokens of a step that was just made: the committed ones, and behind them the drafts that the host knows. A row
    behind a step in flight gets both from the device, where the host's half of it says what that step verifies."""
    ids, at = m.input_ids.tolist(), 0
    for i, row in enumerate(step.rows):
        s, q = row.request, row.q
        drafts = s.drafts if s.has_drafts else [settings.vocab_size - 1] * settings.num_draft
        known = [*s.tokens, *drafts] if step.kind == KIND_DECODE else s.tokens
        if r.remap[i] < 0:
            ours, theirs = ids[at : at + q], known[row.start : row.start + q]
            require(ours == theirs, "step", r.step_id, "tokens of", s.uid, ours, theirs)
        if getattr(m, "fresh_ids", None) is not None:
            ours, theirs = m.fresh_ids[i].tolist(), [s.tokens[-1], *drafts]
            require(ours == theirs, "step", r.step_id, "fresh ids of", s.uid, ours, theirs)
        at += q


def compare_events(batch, events: list[Event]) -> None:
    for name in EVENT:
        ours, theirs = getattr(batch, name).tolist(), [int(getattr(e, name)) for e in events]
        require(ours == theirs, name, ours, theirs)


def compare_stats(stats, m: Scheduler) -> None:
    for name in POOLS:
        ours, pool = getattr(stats, name), getattr(m, name)
        levels = (ours.total, ours.free, ours.cached, ours.held, ours.limbo)
        expected = (pool.total, len(pool.free), len(pool.cached), pool.held, len(pool.limbo))
        require(levels == expected, name, levels, pool.__dict__)
    for name in COUNTED:
        require(getattr(stats, name) == m.count[name], name, getattr(stats, name), m.count[name])
    for name in ("queries", "hit_tokens", "replayed_tokens"):
        ours = getattr(stats, f"prefix_{name}")
        require(ours == m.prefix.count[name], "prefix", name, ours, m.prefix.count)
    require(stats.prefix_evictions == m.main.evictions, "evictions", stats.prefix_evictions, m.main.evictions)
    for reason, n in stats.finished.items():
        require(n == m.finished[int(reason)], reason, n, m.finished)
    for name, phase in (("waiting", 1), ("prefill", 2), ("running", 3), ("zombie", 4), ("handoff", 6)):
        n = sum(s.phase == phase for s in m.requests.values())
        require(getattr(stats, name) == n, name, getattr(stats, name), n)
    for name in ("unfinished", "committed", "done"):
        require(getattr(stats, name) == getattr(m, name), name, getattr(stats, name), getattr(m, name))
    require(stats.last_step == m.launched, "last_step", stats.last_step, m.launched)
    require(stats.queued_events == len(m.waiting_events), "queued_events", stats.queued_events)
    require(stats.pinned_units == sum(len(u) for _, u in m.pins.values()), "pinned_units", stats.pinned_units)
    require(not stats.poisoned, "the core is poisoned")
