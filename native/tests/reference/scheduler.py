"""The scheduler: commands, steps, ends. The passes are in `prefill` and `decode`, the end of a step in `commit`."""

from __future__ import annotations

from collections import Counter, deque

from reference import fork, transfer
from reference.commit import commit_row
from reference.decode import decode_pass
from reference.pool import Pool
from reference.prefill import drop_too_long, prefill_pass, wants_prefill
from reference.prefix import PrefixCache
from reference.publish import StepWriter
from reference.records import (
    ABORT_ACCEPTED,
    ABORT_FINISHED,
    ABORT_UNKNOWN,
    COMPLETION,
    DECODE,
    EMPTY_PREFILL,
    FINISH,
    KIND_DECODE,
    KIND_PREFILL,
    LAST,
    PROMPT,
    TRY_PREFILL,
    Drafts,
    Event,
    Outputs,
    Phase,
    Reason,
    Refused,
    Request,
    Step,
)
from reference.settings import Settings
from reference.varlen import VerifyLengths


class Scheduler:
    """One engine thread's view; submit and abort are queued and carried out by the next engine call, in order."""

    def __init__(self, settings: Settings):
        self.settings = c = settings
        reuse = c.stream_ordered_reuse and c.engine_type != COMPLETION  # a transfer does not wait for the queue
        self.main = Pool(c.num_blocks, reuse)
        self.swa = Pool(c.num_swa_slots, reuse)
        self.state = Pool(c.num_state_slots, reuse)
        # Draft and row slots are ordered by the device queue itself: they may be reused at once.
        self.draft = Pool(c.max_num_seqs + 1 if c.num_draft else 0, True)
        self.rows = Pool(c.max_num_seqs + 1, True)
        self.prefix = PrefixCache(c, self.main)
        self.varlen = VerifyLengths(c)
        self.requests: dict[int, Request] = {}  # not RETIRED
        self.queue: list[Request] = []
        self.running: list[Request] = []
        self.forks: list[Request] = []  # children that wait for their parents
        self.ready_parents: list[Request] = []  # parents of such children whose prompt is computed
        self.pins: dict[int, tuple[str, list[int]]] = {}
        self.next_pin = 0
        self.commands: dict[int, set[str]] = {}
        self.open: deque[Step] = deque()  # launched, not committed
        self.ended: deque[Request] = deque()  # not reported by schedule
        self.waiting_events: deque[Request] = deque()
        self.count: Counter[str] = Counter()
        self.finished: Counter[Reason] = Counter()
        self.next_uid = self.tickets = 0
        self.launched = self.committed = self.done = 0
        self.decode_since_prefill = self.prefill_burst = 0
        self.on_phase = None  # called with (request, old, new): the invariants watch transitions

    def new_request(self, prompt, max_tokens, min_tokens, stop, priority, replay_mode=None) -> Request:
        self.next_uid += 1
        s = Request(self.next_uid, list(prompt), max_tokens, min_tokens, frozenset(stop), priority, len(prompt))
        s.replay_mode = replay_mode or self.settings.replay_mode
        if s.replay_mode != "off":
            s.keep_from = max(0, s.prompt_len - self.settings.replay_keep)
        self.requests[s.uid] = s
        return s

    # --- client calls ------------------------------------------------------------------------------------------

    def submit(
        self, prompt, *, max_tokens=16, min_tokens=0, stop=(), priority=0, prefix_lookup=True, replay_mode=None
    ) -> int:
        if self.settings.engine_type == COMPLETION:
            raise Refused("argument", "prompts are computed elsewhere")
        s = self.new_request(prompt, max_tokens, min_tokens, stop, priority, replay_mode)
        s.prefix_lookup = prefix_lookup
        self.commands[s.uid] = {"submit"}
        return s.uid

    def abort(self, uids) -> list[int]:
        out = []
        for uid in uids:
            s = self.requests.get(uid)
            if s and not s.is_terminal:
                self.commands.setdefault(uid, set()).add("abort")
                out.append(ABORT_ACCEPTED)
            else:
                out.append(ABORT_FINISHED if 0 < uid <= self.next_uid else ABORT_UNKNOWN)
        return out

    def drain(self) -> None:
        """Carry out what clients asked for, in order of each request's first command."""
        while self.commands:
            uid = next(iter(self.commands))
            what = self.commands.pop(uid)
            s = self.requests[uid]
            if "submit" in what:
                self.tickets += 1
                s.ticket = self.tickets
                self.set_phase(s, Phase.WAITING)
                self.queue.append(s)
            if "abort" in what and not s.is_terminal:
                self.count["aborts"] += not s.ending  # a transfer that ends already is not ended again
                transfer.end(self, s, Reason.ABORT)

    # --- the queue ---------------------------------------------------------------------------------------------

    def queue_order(self) -> list[Request]:
        """Continuations of prompts before all, then by priority; preempted before new; then by ticket."""
        return sorted(
            self.queue, key=lambda s: (s.queue_class > 0, s.queue_class and s.priority, s.queue_class, s.ticket)
        )

    def queue_head(self) -> Request | None:
        return self.queue_order()[0] if self.queue else None

    @property
    def admitted(self) -> int:
        return self.rows.held

    # --- ends --------------------------------------------------------------------------------------------------

    def set_phase(self, s: Request, phase: Phase) -> None:
        if self.on_phase:
            self.on_phase(s, s.phase, phase)
        s.phase = phase

    def release(self, s: Request) -> None:
        """Consume every handle; the tail block goes first, so that heads of prompts stay unused longer."""
        while s.blocks:
            self.main.release(s.blocks.pop(), s.last_step)
        for pool, name in (
            (self.swa, "swa_slot"),
            (self.state, "state_slot"),
            (self.draft, "draft_slot"),
            (self.rows, "row_slot"),
        ):
            if getattr(s, name):
                pool.release(getattr(s, name), s.last_step)
                setattr(s, name, 0)

    def end(self, s: Request, reason: Reason, has_event: bool = True) -> None:
        if s in self.running:
            self.running.remove(s)
        elif s in self.queue:
            self.queue.remove(s)
        fork.forget(self, s)
        self.release(s)
        s.reason = reason
        s.inflight = 0
        s.final_output = s.n_output
        self.finished[reason] += 1
        self.ended.append(s)
        if has_event:
            self.waiting_events.append(s)
        self.set_phase(s, Phase.ZOMBIE)
        self.settle(s)

    def settle(self, s: Request) -> None:
        """A request that ended is RETIRED when its last step in flight was committed."""
        if s.phase == Phase.ZOMBIE and s.inflight_all == 0:
            self.set_phase(s, Phase.RETIRED)
            del self.requests[s.uid]
            self.commands.pop(s.uid, None)

    def finish(self, uid: int, reason: Reason, n_output: int) -> bool:
        """The text of a request contains a stop string after ``n_output`` tokens."""
        self.drain()
        s = self.requests.get(uid)
        if s is None or s.is_terminal:
            raise Refused("not_found", f"request {uid}")
        if not 0 <= n_output <= s.n_output:
            raise Refused("argument", f"n_output {n_output}")
        del s.tokens[s.prompt_len + n_output :]
        s.cached = min(s.cached, s.len)
        transfer.end(self, s, reason)
        return True

    @property
    def unfinished(self) -> int:
        return sum(not s.is_terminal for s in self.requests.values())

    # --- steps -------------------------------------------------------------------------------------------------

    def probe(self) -> dict:
        self.drain()
        c, d = self.settings, self.decode_since_prefill
        is_any = d != 0 and d % c.prefill_interval_any == 0
        return {
            "point": 1 if is_any else 2 if d % c.prefill_interval_all == 0 else 0,
            "want": wants_prefill(self),
            "has_running": bool(self.running or (c.engine_type == COMPLETION and self.queue)),
            "has_unfinished": self.unfinished > 0,
            "burst_reached": 0 < c.max_prefill_burst <= self.prefill_burst,
            "in_flight": self.launched - self.committed,
            "decode_since_prefill": d,
        }

    def check_room(self) -> None:
        depth = self.settings.depth
        if self.launched - self.committed >= depth:
            raise Refused("order", f"step {self.committed + 1} must be committed first")
        if self.launched - self.done > depth:
            raise Refused("order", f"step {self.done + 1} must be done first")

    def schedule_local(self) -> Outputs:
        """The step of an engine with one rank: prefill at its points and when nothing runs, else decode."""
        self.check_room()
        if self.settings.engine_type == PROMPT:
            out = self.schedule(TRY_PREFILL)
            return out if out.num_reqs else self.schedule(EMPTY_PREFILL)
        if self.settings.engine_type == COMPLETION:
            return self.schedule(DECODE)
        p = self.probe()
        is_due = p["point"] != 0 or not p["has_running"]
        if p["want"] and is_due and not (p["burst_reached"] and p["has_running"]):
            out = self.schedule(TRY_PREFILL)
            if out.num_reqs:
                return out
        return self.schedule(DECODE)

    def schedule(self, mode: int) -> Outputs:
        if self.settings.engine_type == (PROMPT if mode == DECODE else COMPLETION):
            raise Refused("argument", f"mode {mode} of an engine of type {self.settings.engine_type}")
        self.check_room()
        self.drain()
        drop_too_long(self)
        step = Step(self.launched + 1, KIND_DECODE if mode == DECODE else KIND_PREFILL)
        out = StepWriter(self, step)
        if mode == TRY_PREFILL:
            prefill_pass(self, step, out)
        elif mode == DECODE:
            if self.settings.engine_type == COMPLETION:
                transfer.admit(self)
            decode_pass(self, step, out)
        if step.rows or mode != TRY_PREFILL:
            out.sweep()
        self.count_step(step, mode)
        if step.rows:
            self.launched += 1
            self.open.append(step)
        return out.publish()

    def count_step(self, step: Step, mode: int) -> None:
        is_prefill = step.kind == KIND_PREFILL and bool(step.rows)
        # In a group an empty decode call is a step of the others.
        is_decode = step.kind == KIND_DECODE and (bool(step.rows) or self.settings.dp_size > 1)
        if mode == EMPTY_PREFILL or is_prefill:
            self.decode_since_prefill = 0
            self.prefill_burst += 1
        if is_decode:
            self.decode_since_prefill += 1
            self.prefill_burst = 0
        if not step.rows:
            return
        name = "prefill" if is_prefill else "decode"
        self.count[f"steps_{name}"] += 1
        self.count[f"tokens_{name}"] += step.tokens
        if is_decode:
            self.count["tokens_drafted"] += step.tokens - len(step.rows)

    def commit(self, step_id: int, sampled, accepted=None, ok=None, drafts=None, confidence=None) -> list[Event]:
        """``sampled[i]``, ``accepted[i]`` (draft ids) and ``ok[i]`` of row i. Rows that make no token ignore theirs.

        ``drafts[i]``: proposed for the next step of row i, with ``confidence[i]`` or none; None where nothing is.
        """
        if step_id != self.committed + 1 or step_id > self.launched:
            raise Refused("order", f"step {step_id}, the next is {self.committed + 1}")
        self.drain()
        step = self.open.popleft()
        events: list[Event] = []
        overrun = self.count["overrun_rows"]
        for i, r in enumerate(step.rows):
            tokens = [*(accepted[i] if accepted else ()), sampled[i]]
            proposed = Drafts(drafts[i], confidence[i] if confidence else None) if drafts else None
            commit_row(self, step, r, tokens, ok is None or ok[i], proposed, events)
        self.count["overrun_steps"] += self.count["overrun_rows"] > overrun
        self.committed = step_id
        self.flush(events)
        return events

    def flush(self, events: list[Event]) -> None:
        """Ends that belong to no row go behind the rows, as many as a batch holds."""
        limit = self.settings.event_capacity
        while self.waiting_events and len(events) + self.waiting_events[0].first_waits < limit:
            s = self.waiting_events.popleft()
            transfer.put_first(s, events)
            events.append(Event(s.uid, FINISH, LAST, -1, s.final_output, s.prompt_len, s.reason))

    def put_first(self, s: Request, events: list[Event]) -> None:
        transfer.put_first(s, events)

    def carry_out_forks(self, step: Step, out, candidates: list[Request]) -> None:
        fork.carry_out(self, step, out, candidates)

    def hand_over(self, s: Request, last: Event) -> None:
        transfer.offer(self, s, last)

    def poll_events(self) -> list[Event]:
        self.drain()
        events: list[Event] = []
        self.flush(events)
        return events

    def reset_prefix_cache(self) -> bool:
        self.prefix.reset()
        return True

    def step_done(self, step_id: int) -> None:
        if step_id > self.launched:
            raise Refused("order", f"step {step_id} is not launched")
        if step_id > self.done:
            self.done = step_id
            for pool in (self.main, self.swa, self.state, self.draft, self.rows):
                pool.complete(step_id)
