"""What the invariants look at: the reference scheduler, and a ledger of what it did (``spec/engine.md`` 4.7).

``owner`` maps a unit to the requests that hold it now, ``uses`` a launched step that is not done to the units it was
given and their users at launch. The ledger is kept from records and events alone, never from the scheduler's own books.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from reference.decode import growth, is_candidate
from reference.prefill import is_new, is_too_long, wants_prefill
from reference.records import (
    COMPLETION,
    DECODE,
    FINISH,
    FLAG_FORKS,
    KIND_PREFILL,
    LAST,
    POOL_SWA,
    TRY_PREFILL,
    Outputs,
    Phase,
)

POOLS = ("main", "swa", "state", "draft", "rows")
SLOTS = (("swa", "swa_slot"), ("state", "state_slot"), ("draft", "draft_slot"), ("rows", "row_slot"))


class Before:
    """The state that a command found; ``is_known`` is false while client commands wait that it will carry out first."""

    def __init__(self, m, command: str, mode):
        self.command = command
        self.mode = mode
        self.is_known = not m.commands
        head = m.queue_head()
        self.want = wants_prefill(m) and not (is_new(head) and is_too_long(m, head))
        # Injected requests join in the call itself.
        asking = [s for s in m.running if is_candidate(m, s)]
        asking += m.queue if m.settings.engine_type == COMPLETION else []
        self.lacks = sum(growth(m, s) for s in asking) > m.main.available
        self.epoch = {name: dict(getattr(m, name).last_use) for name in POOLS}
        self.held = {name: set(getattr(m, name).ref) for name in POOLS}
        self.done = m.done
        self.idle = not m.open and m.launched == m.done
        self.ended = {s.uid: (s.len, s.cached) for s in m.requests.values() if s.is_terminal}
        self.preemptions = m.count["preemptions"]


class Observer:
    """Follows one scheduler; `after` updates the ledger and evaluates every invariant."""

    def __init__(self, model, checks):
        self.m = model
        self.checks = checks
        self.before: Before | None = None
        self.outputs: Outputs | None = None
        self.events: list | None = None
        self.transitions: list = []
        self.uses: dict[int, dict] = {}  # step -> {(pool, unit): uids}
        self.rows: dict[int, list] = {}  # step -> uids, until the next but one is launched
        self.kinds: dict[int, int] = {}
        self.output_index: dict[int, int] = defaultdict(int)
        self.terminals: dict[int, int] = defaultdict(int)
        self.after_end: list[int] = []
        self.gaps: list[tuple] = []
        self.chunks: dict[tuple, list] = defaultdict(list)  # (uid, generation) -> [(start, end, length)]
        self.firsts: dict[int, list] = defaultdict(list)  # priority -> tickets in order of their first chunk
        self.holds: dict[int, int] = defaultdict(int)
        self.empty_calls = 0
        self.seen: Counter[str] = Counter()  # rare things, so that a test can ask whether they happened
        model.on_phase = lambda s, old, new: self.transitions.append((old, new))

    @property
    def owner(self) -> dict:
        """(pool, unit) -> the requests that hold it."""
        out = defaultdict(list)
        for s in self.m.requests.values():
            for block in s.blocks:
                out["main", block].append(s.uid)
            for pool, name in SLOTS:
                if getattr(s, name):
                    out[pool, getattr(s, name)].append(s.uid)
        return out

    @property
    def pinned(self) -> Counter:
        """(pool, unit) -> references from outside."""
        return Counter((pool, unit) for pool, units in self.m.pins.values() for unit in units)

    @property
    def writers(self) -> dict:
        """As `owner`, without full blocks of computed positions, and those of a prefix hit: these are only read."""
        out = self.owner
        for s in self.m.requests.values():
            for block in s.blocks[: max(s.cached, s.store_from) // self.m.settings.block_size]:
                out["main", block].remove(s.uid)
        return out

    def start(self, command: str, mode=None) -> None:
        self.before = Before(self.m, command, mode)

    def after(self, command: str, outputs: Outputs | None, events: list | None) -> None:
        self.outputs, self.events = outputs, events
        if outputs is not None:
            self.note_outputs(outputs)
        for event in events or ():
            self.note_event(event)
        self.uses = {step: units for step, units in self.uses.items() if step > self.m.done}
        for check in self.checks:
            check(self)
        self.transitions.clear()

    def note_outputs(self, o: Outputs) -> None:
        # What is pinned from outside, or held by requests that wait for another engine, may be all that there is: then
        # nobody can be blamed for waiting.
        outside = any(units for _, units in self.m.pins.values())
        outside = outside or any(s.phase == Phase.HANDOFF for s in self.m.requests.values())
        is_idle = self.before.idle and self.before.mode is None and not outside
        self.empty_calls = self.empty_calls + 1 if is_idle and not o.num_reqs and self.m.unfinished else 0
        if not o.num_reqs:
            return
        used = defaultdict(set)
        for i, uid in enumerate(o.seq_uid):
            s = self.m.requests[uid]
            for block in o.tables[i]:
                used["main", block].add(uid)
            for pool, slot in (("swa", o.swa_slot[i]), ("state", o.state_slot[i])):
                if slot:
                    used[pool, slot].add(uid)
            if o.kind == KIND_PREFILL:
                if not self.chunks[uid, s.generation] and s.queue_class == 2:
                    self.firsts[s.priority].append(s.ticket)
                end = o.seqlens_k[i]
                self.chunks[uid, s.generation].append((end - o.seqlens_q[i], end, s.len))
            self.holds.pop(uid, None)
        for uid in o.held_uid:
            self.holds[uid] += 1
        for uid in o.preempted_uid:
            self.holds.pop(uid, None)
        self.seen["clones"] += bool(o.flags & FLAG_FORKS)
        self.seen["children queued"] += sum(
            o.kind == KIND_PREFILL and self.m.requests[uid].was_forked and self.m.requests[uid].generation == 0
            for uid in o.seq_uid
        )
        # Whoever holds the source of a clone may go on; the copy belongs to a row of the step.
        owner = self.owner
        sources = [("main", source) for source, _ in o.clone_blocks]
        sources += [("swa" if pool == POOL_SWA else "state", source) for pool, source, _ in o.clone_slots]
        for unit in sources:
            used[unit].update(owner[unit])
        self.uses[o.step_id] = used
        self.rows[o.step_id] = list(o.seq_uid)
        self.rows.pop(o.step_id - 3, None)
        self.kinds[o.step_id] = o.kind

    def note_event(self, e) -> None:
        if self.terminals[e.seq_uid]:
            self.after_end.append(e.seq_uid)
        if e.kind != FINISH:
            self.output_index[e.seq_uid] += 1
            if e.output_index != self.output_index[e.seq_uid]:
                self.gaps.append((e.seq_uid, e.output_index))
        self.terminals[e.seq_uid] += bool(e.flags & LAST)


def is_decode(before: Before) -> bool:
    return before.command == "schedule" and before.mode in (None, DECODE)


def is_attempt(before: Before) -> bool:
    return before.command == "schedule" and before.mode == TRY_PREFILL


__all__ = ["POOLS", "SLOTS", "Before", "Observer", "Phase", "is_attempt", "is_decode"]
