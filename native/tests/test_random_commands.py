"""Random commands against the model of spec/engine.md 4.7: owners, uses, done; the core checks itself after each."""

import contextlib
import random

import pytest
from native_driver import STOPS, VOCAB, Driver, expected_output, require, small_config

from deepinfer_contracts import AbortStatus, FinishReason, Pool, StepKind, StepMode
from deepinfer_native.errors import ArgumentError, BusyError, NotFoundError, OrderError, StaleHandleError

COMMANDS = {
    "submit": 4,
    "schedule": 12,
    "commit": 11,
    "done": 12,
    "abort": 0.2,
    "finish": 0.4,
    "poll": 1,
    "reset": 0.1,
    "fork": 0.7,
    "pin": 0.4,
    "unpin": 0.5,
}


class Storm:
    """Commands in any order that the core allows, and some that it must refuse."""

    def __init__(self, seed, **changes):
        self.rng = random.Random(seed)
        self.driver = Driver(small_config(**changes))
        self.stems = [[self.rng.randrange(VOCAB) for _ in range(48)] for _ in range(2)]
        self.live = []
        self.pins = []
        self.disturbed = set()
        self.committed = self.launched = 0

    def submit(self):
        if len(self.live) > 12:
            return
        r = self.rng
        prompt = [r.randrange(VOCAB) for _ in range(r.choice([1, 3, 4, 5, 17, 40]))]
        if self.driver.config.prefix_cache and r.random() < 0.8:
            prompt = r.choice(self.stems)[: r.choice([8, 16, 24, 33, 48])] + prompt[: r.choice([0, 0, 1, 5])]
        request = self.driver.submit(
            prompt,
            max_tokens=r.choice([1, 2, 20, 40]),
            stop=STOPS if r.random() < 0.2 else (),
            priority=r.choice([0, 0, 0, -1, 2]),
        )
        self.live.append(request)

    def schedule(self):
        core, depth = self.driver.core, self.driver.config.depth
        may = self.launched - self.committed < depth and self.launched - self.driver.device.done <= depth
        mode = self.rng.choice([None, None, StepMode.TRY_PREFILL, StepMode.DECODE, StepMode.EMPTY_PREFILL])
        if not may:
            before = core.stats()
            with pytest.raises(OrderError):
                core.schedule(StepMode.DECODE)
            require(core.stats() == before, "a refused schedule changed something")
            return
        o = self.driver.schedule(mode)
        if o.num_reqs:
            self.launched += 1
            require(o.step_id == self.launched, "step ids have a gap")
            if self.rng.random() < 0.5:
                core.pack(o.step_id)

    def commit(self):
        core = self.driver.core
        if not self.driver.open:
            with pytest.raises(OrderError):
                core.commit(self.committed + 1, None)
            return
        if self.rng.random() < 0.1:
            before = core.stats()
            step, kind, rows = self.driver.open[-1]
            with pytest.raises(OrderError):
                core.commit(step + 1, self.driver.sample(kind, rows))
            require(core.stats() == before, "a refused commit changed something")
        self.driver.commit()
        self.committed += 1

    def done(self):
        device = self.driver.device
        # A device may be done with a step whose results were not read yet.
        newest = self.launched if self.rng.random() < 0.2 else self.committed
        if newest > device.done:
            self.driver.done(self.rng.randint(device.done + 1, newest))

    def abort(self):
        if not self.live:
            return
        request = self.rng.choice(self.live)
        status = self.driver.core.abort([request.uid])[0]
        if request.reason == FinishReason.NONE and status == AbortStatus.ACCEPTED:
            self.disturbed.add(request.uid)

    def finish(self):
        if not self.live or self.rng.random() < 0.7:
            return
        request = self.rng.choice(self.live)
        try:
            self.driver.core.finish(request.uid, FinishReason.STOP, self.rng.randint(0, len(request.output)))
        except NotFoundError:
            return
        self.disturbed.add(request.uid)

    def poll(self):
        self.driver.poll()

    def fork(self):
        if not self.live or len(self.live) > 12:
            return
        parent = self.rng.choice(self.live)
        try:
            child = self.driver.fork(
                parent, max_tokens=self.rng.choice([None, 3, 20]), at_prompt=self.rng.random() < 0.5
            )
        except NotFoundError:
            self.driver.poll()  # it may have ended without a commit
            require(parent.reason != FinishReason.NONE, "a live parent is not found")
            return
        self.live.append(child)

    def pin(self):
        """Pins of what the newest steps use; a unit whose request ended since is refused."""
        if not self.driver.device.open or len(self.pins) > 1:
            return
        row = self.rng.choice(self.driver.device.open[-1].rows)
        units = self.rng.sample(row.table, min(len(row.table), 2))
        with contextlib.suppress(ArgumentError):
            self.pins.append(self.driver.core.pin(Pool.MAIN, units))

    def unpin(self):
        if self.pins:
            handle = self.pins.pop()
            self.driver.core.unpin(handle)
            with pytest.raises(StaleHandleError):
                self.driver.core.unpin(handle)

    def reset(self):
        if not self.driver.config.prefix_cache:
            return
        try:
            self.driver.core.reset_prefix_cache()
        except BusyError:
            return
        require(self.driver.core.stats().main.cached == 0, "cached blocks after a reset")

    def run(self, commands):
        for _ in range(commands):
            getattr(self, self.rng.choices(list(COMMANDS), list(COMMANDS.values()))[0])()
            self.driver.core.check()
            self.live = [r for r in self.live if r.reason == FinishReason.NONE]
        while self.pins:
            self.unpin()
        while self.driver.open:
            self.driver.retire()
        self.driver.done(self.launched)
        self.driver.run()
        self.launched = self.committed = self.driver.core.stats().committed
        for r in self.driver.follower.requests.values():
            require(r.reason != FinishReason.NONE, "no terminal event for", r.uid)
            tokens, reason = expected_output(r, self.driver.config.max_model_len)
            if r.uid in self.disturbed or r.reason == FinishReason.TOO_LONG:
                require(r.output == tokens[: len(r.output)], "tokens of", r.uid)
            else:
                require((r.output, r.reason) == (tokens, reason), "run of", r.uid, r.reason, reason)
        stats = self.driver.core.stats()
        for pool in (stats.main, stats.swa, stats.state, stats.draft):
            require(pool.free + pool.cached == pool.total, "leak", pool)
        return stats


COMPACT = {"prefix_cache": True, "replay_mode": "compact"}
CASES = {
    "depth1": {"num_blocks": 16},
    "depth2": {"num_blocks": 16, "depth": 2},
    "depth2_large": {"num_blocks": 200, "depth": 2, "max_chunk": 6},
    "depth2_drafts": {"num_blocks": 24, "depth": 2, "num_draft": 2},
    "depth1_drafts_chunks": {"num_blocks": 24, "num_draft": 3, "max_chunk": 5},
    "stream_ordered": {"num_blocks": 16, "depth": 2, "stream_ordered_reuse": True},
    "stop_preempted": {"num_blocks": 200, "depth": 2, "stop_preempted": True},
    "by_length": {"num_blocks": 16, "depth": 2, "row_order": "length_desc"},
    "prefix": {"num_blocks": 24, "prefix_cache": True},
    "prefix_depth2_drafts": {"num_blocks": 30, "depth": 2, "num_draft": 2, **COMPACT, "replay_keep": 13},
    "prefix_exact": {"num_blocks": 40, "depth": 2, **COMPACT, "replay_keep": 9, "replay_exact": True, "replay_len": 10},
    "prefix_chunks": {"num_blocks": 30, "depth": 2, "max_chunk": 3, "prefix_cache": True, "replay_len": 11},
    "prefix_collisions": {"num_blocks": 24, "prefix_cache": True, "prefix_hash_bits": 1},
    "prefix_stream_ordered": {"num_blocks": 24, "depth": 2, "stream_ordered_reuse": True, "prefix_cache": True},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_random_commands_keep_every_invariant(case, seed):
    Storm(seed, **CASES[case]).run(2000)


TINY = {
    "one_block": {"num_blocks": 2, "max_num_seqs": 1, "num_swa_slots": 2, "num_state_slots": 2},
    "one_block_drafts": {"num_blocks": 2, "block_size": 8, "num_draft": 3, "max_num_seqs": 1},
    "blocks_of_one_token": {"block_size": 1, "num_blocks": 30, "ratios_sparse": (1,), "ratios_dense": (1,)},
    "chunks_of_one": {"num_blocks": 12, "max_chunk": 1, "max_model_len": 20},
    "few_slots": {"num_blocks": 14, "num_swa_slots": 2, "num_state_slots": 3, "num_draft": 1},
    "low_watermark": {"num_blocks": 14, "prefill_watermark": 0.01, "max_prefill_burst": 1},
    "no_chunks": {"num_blocks": 20, "chunked_prefill": False, "max_model_len": 20},
    "model_of_one": {"max_model_len": 1, "num_blocks": 4},
}


@pytest.mark.parametrize("case", TINY)
@pytest.mark.parametrize("depth", [1, 2])
def test_random_commands_keep_every_invariant_at_the_smallest_sizes(case, depth):
    Storm(depth, **TINY[case], depth=depth).run(500)


def test_random_commands_reach_the_rare_transitions():
    stats = Storm(0, **CASES["depth2"]).run(3000)
    reached = (stats.preemptions, stats.holds, stats.aborts, stats.overrun_rows, stats.stale_rows)
    assert all(reached), reached


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(2, 5))
def test_random_commands_keep_every_invariant_for_long(case, seed):
    Storm(seed, **CASES[case]).run(6000)


def test_model_of_the_device_catches_a_unit_that_changes_hands():
    """A wrong declaration must be seen: reuse at once is not safe for a device that is not in order."""
    storm = Storm(0, num_blocks=20, depth=2, stream_ordered_reuse=True)
    storm.driver.device.strict = True
    with pytest.raises(AssertionError, match="changed hands"):
        storm.run(6000)


def test_kinds_are_never_mixed():
    storm = Storm(3, depth=2, num_draft=1)
    storm.run(400)
    q = storm.driver.config.q
    for _, kind, rows in storm.driver.steps:
        if kind == StepKind.DECODE:
            require(all(n == q for _, n in rows), "decode rows")
