"""The C core and the reference scheduler under the same commands: every field is compared after each of them."""

from __future__ import annotations

import numpy as np
from compared import compare_events, compare_inputs, compare_outputs, compare_stats
from drawn_output import Drawn
from native_driver import require
from reference import Refused, Scheduler, Settings, fork, pins, transfer
from reference.commit import wants_token
from reference.invariants import CHECKS
from reference.observer import Observer
from reference.records import Outputs
from reference.varlen import correct

from deepinfer_contracts import FinishReason, Pool, StepMode
from deepinfer_native import Core
from deepinfer_native.config import REPLAY_MODES
from deepinfer_native.errors import (
    ArgumentError,
    BusyError,
    CapacityError,
    ConfigurationError,
    NativeError,
    NotFoundError,
    OrderError,
    StaleHandleError,
)

ERRORS = {
    "busy": BusyError,
    "capacity": CapacityError,
    "stale": StaleHandleError,
    "config": ConfigurationError,
    "order": OrderError,
    "not_found": NotFoundError,
    "argument": ArgumentError,
}


class Pair:
    """Commands go to both; with ``watch`` every invariant is evaluated after each."""

    def __init__(self, config, watch=True):
        self.config = config
        self.core = Core(config)
        self.model = Scheduler(Settings.of(config))
        self.watch = Observer(self.model, CHECKS) if watch else None
        self.commands = 0
        self.pins: dict[int, int] = {}  # handles of pins by the reference's number, used ones too
        self.handles: dict[int, int] = {}  # reservations by uid, used ones too

    def after(self, command: str, outputs=None, events=None) -> None:
        self.commands += 1
        self.core.check()
        compare_stats(self.core.stats(), self.model)
        if self.watch:
            self.watch.after(command, outputs, events)

    def start(self, command: str, mode=None) -> None:
        if self.watch:
            self.watch.start(command, mode)

    def both(self, command: str, ours, theirs, mode=None):
        """Run a call on both; a refusal must be the same on both, and change nothing. Returns both results or None."""
        # Queued commands may be carried out by a call that is then refused: what they change is not its change.
        self.start(command, mode)
        before = None if self.model.commands else self.core.stats()
        try:
            expected = theirs()
        except Refused as refusal:
            try:
                ours()
            except ERRORS[refusal.code]:
                require(before is None or self.core.stats() == before, "a refused", command, "changed something")
                self.after(f"refused {command}")
                return None
            raise AssertionError(f"{command} should be refused: {refusal}") from None
        try:
            return ours(), expected
        except NativeError as error:
            raise AssertionError(f"{command} was refused: {error}") from error

    def submit(
        self, prompt, *, max_tokens, min_tokens=0, stop=(), priority=0, prefix_lookup=True, replay_mode=None
    ) -> int:
        self.start("submit")
        values = {"max_tokens": max_tokens, "min_tokens": min_tokens, "priority": priority}
        values["prefix_lookup"] = prefix_lookup
        mode = -1 if replay_mode is None else REPLAY_MODES.index(replay_mode)
        uid = self.core.submit(prompt, eos_ids=stop, replay_mode=mode, **values)
        require(uid == self.model.submit(prompt, stop=stop, replay_mode=replay_mode, **values), "uid", uid)
        self.after("submit")
        return uid

    def abort(self, uids) -> list[int]:
        self.start("abort")
        status = [int(s) for s in self.core.abort(uids)]
        require(status == self.model.abort(uids), "abort", uids, status)
        self.after("abort")
        return status

    def finish(self, uid: int, n_output: int) -> None:
        reason = FinishReason.STOP
        done = self.both(
            "finish",
            lambda: self.core.finish(uid, reason, n_output),
            lambda: self.model.finish(uid, reason, n_output),
        )
        if done:
            self.after("finish")

    def schedule(self, mode=None) -> Outputs | None:
        """None when both refuse."""
        done = self.both(
            "schedule",
            lambda: self.core.schedule_local() if mode is None else self.core.schedule(StepMode(mode)),
            lambda: self.model.schedule_local() if mode is None else self.model.schedule(mode),
            mode,
        )
        if not done:
            return None
        o, r = done
        compare_outputs(o, r)
        if r.num_reqs:
            # Validation "full" looks at every field.
            compare_inputs(self.core.pack(r.step_id), r, self.model.open[-1], self.model.settings)
        self.after("schedule", outputs=r)
        return r

    def commit(self, rng, step_id=None, bad_rows: float = 0.0) -> None:
        """Tokens, accepted drafts and failed rows are drawn from ``rng``."""
        m = self.model
        if step_id is None:
            step_id = m.committed + 1
        step = m.open[0] if m.open else None
        rows = step.rows if step else []
        drawn = Drawn(rng, self.config, step, bad_rows)
        is_needed = any(wants_token(step, r) for r in rows)
        output = drawn.output() if step else None
        if not is_needed and rng.random() < 0.5:
            output = drawn.drafts = drawn.confidence = None
        done = self.both(
            "commit",
            lambda: self.core.commit(step_id, output),
            lambda: m.commit(step_id, drawn.sampled, drawn.accepted, drawn.ok, drawn.drafts, drawn.confidence),
        )
        if not done:
            return
        batch, events = done
        require(batch.step_id == step_id, "step of the batch")
        compare_events(batch, events)
        self.after("commit", events=events)

    def step_done(self, step_id: int) -> None:
        if self.both("step_done", lambda: self.core.step_done(step_id), lambda: self.model.step_done(step_id)) is None:
            return
        self.after("step_done")

    def reset_prefix_cache(self) -> None:
        if self.both("reset", lambda: self.core.reset_prefix_cache(), self.model.reset_prefix_cache) is not None:
            self.after("reset")

    def reserve(self, prompt, **values) -> None:
        stop = values.pop("stop", ())
        done = self.both(
            "reserve",
            lambda: self.core.reserve(prompt, eos_ids=stop, **values),
            lambda: transfer.reserve(self.model, prompt, stop=stop, **values),
        )
        if done:
            r, s = done
            ours = (r.uid, r.block_ids.tolist(), r.swa_slot, r.state_slot)
            require(ours == (s.uid, s.blocks, s.swa_slot, s.state_slot), "reserve", ours, s)
            self.handles[s.uid] = r.handle
            self.after("reserve")

    def inject(self, uid: int, token: int, has_drafts: bool) -> None:
        """``uid`` of any request; one that never had a reservation gets a handle that was never made."""
        handle = self.handles.get(uid, (7 << 32) | 12345)
        drafts = [(uid + token + j) % self.config.vocab_size for j in range(self.config.num_draft * has_drafts)]
        done = self.both(
            "inject",
            lambda: self.core.inject(handle, token, drafts=drafts) or True,
            lambda: transfer.inject(self.model, uid, token, drafts),
        )
        if done:
            self.after("inject")

    def handoff(self, uid: int) -> None:
        done = self.both("handoff", lambda: self.core.handoff(uid), lambda: transfer.handoff(self.model, uid))
        if done:
            for name, value in done[1].items():
                ours = getattr(done[0], name)
                ours = ours.tolist() if name in ("block_ids", "drafts") else ours
                require(ours == value, "handoff", uid, name, ours, value)
            self.after("handoff")

    def acknowledge(self, uid: int) -> None:
        done = self.both(
            "acknowledge",
            lambda: self.core.acknowledge(uid) or True,
            lambda: transfer.acknowledge(self.model, uid),
        )
        if done:
            self.after("acknowledge")

    def set_curve(self, sizes, ms) -> None:
        done = self.both(
            "curve",
            lambda: self.core.set_verify_curve(sizes, ms) or True,
            lambda: self.model.varlen.set_curve(sizes, ms),
        )
        if done:
            self.after("curve")

    def correct(self, rng) -> None:
        """The device's own lengths of the newest step; sometimes of another sum."""
        m = self.model
        step = m.open[-1] if m.open else None
        lengths = [r.q for r in step.rows] if step else [1]
        rng.shuffle(lengths)
        if rng.random() < 0.1:
            lengths[0] += 1
        step_id = step.step_id if step else 1
        done = self.both(
            "correct",
            lambda: self.core.correct(step_id, np.asarray(lengths, np.int32)) or True,
            lambda: correct(m, step_id, lengths),
        )
        if done:
            self.after("correct")

    def fork(self, parent: int, max_tokens: int | None, at_prompt: bool) -> None:
        done = self.both(
            "fork",
            lambda: self.core.fork(parent, seed=1, max_tokens=max_tokens, at_prompt=at_prompt),
            lambda: fork.fork(self.model, parent, max_tokens or 0, at_prompt),
        )
        if done:
            require(done[0] == done[1], "uid of the fork", done)
            self.after("fork")

    def pin(self, pool: int, units: list[int]) -> None:
        done = self.both("pin", lambda: self.core.pin(Pool(pool), units), lambda: pins.pin(self.model, pool, units))
        if done:
            self.pins[done[1]] = done[0]
            self.after("pin")

    def unpin(self, number: int) -> None:
        handle = self.pins.get(number, (9 << 32) | 4321)
        if self.both("unpin", lambda: self.core.unpin(handle) or True, lambda: pins.unpin(self.model, number)):
            self.after("unpin")

    def poll(self) -> None:
        self.start("poll")
        batch, events = self.core.poll_events(), self.model.poll_events()
        compare_events(batch, events)
        self.after("poll", events=events)

    def probe(self) -> None:
        self.start("probe")
        p, expected = self.core.probe(), self.model.probe()
        for name, value in expected.items():
            require(getattr(p, name) == value, "probe", name, getattr(p, name), value)
        self.after("probe")

    def drain(self, rng, limit: int = 4000) -> None:
        """Run until nothing is left, then audit."""
        m = self.model
        for number in list(m.pins):
            self.unpin(number)
        for _ in range(limit):
            while m.open:
                self.commit(rng)
            if m.done < m.launched:
                self.step_done(m.launched)
            self.poll()
            if not m.unfinished and not m.waiting_events:
                break
            for s in [s for s in m.requests.values() if s.phase == 6]:
                self.acknowledge(s.uid)
            self.schedule()
        require(m.unfinished == 0, "unfinished after", limit, "steps")
        self.core.audit()
