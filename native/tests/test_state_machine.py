"""Hypothesis drives the core and the reference scheduler with the same commands and shrinks what makes them differ.

After every command the records are equal field by field, the core's structures agree with each other
(`Core.check`), and the invariants of ``reference/invariants.py`` hold. The seed is printed; ``DEEPINFER_SEED`` sets it.
"""

import os
import random

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from native_driver import VOCAB, small_config
from paired import Pair

from deepinfer_contracts import EngineType

SEED = int(os.environ.get("DEEPINFER_SEED", "20251129"))
SIZES = {
    "tight": {"num_blocks": 14},
    "drafts": {"num_blocks": 20, "num_draft": 2, "max_chunk": 5},
    "odd": {"num_blocks": 12, "max_num_seqs": 3, "num_state_slots": 3, "max_chunk": 6, "row_order": "length_desc"},
    "stop": {"num_blocks": 16, "stop_preempted": True, "max_prefill_burst": 2, "prefill_watermark": 0.6},
    "prefix": {"num_blocks": 30, "prefix_cache": True, "window": 4, "max_chunk": 12},
    "prefix_tight": {"num_blocks": 20, "prefix_cache": True, "window": 4, "replay_len": 5, "num_draft": 1},
    "prompt": {"num_blocks": 30, "engine_type": EngineType.PROMPT, "max_chunk": 8},
    "completion": {"num_blocks": 24, "engine_type": EngineType.COMPLETION, "stop_preempted": True, "num_draft": 1},
}


def machine_for(depth: int, is_stream_ordered: bool):
    class Machine(RuleBasedStateMachine):
        @initialize(size=st.sampled_from(sorted(SIZES)), rng_seed=st.integers(0, 2**32 - 1))
        def create(self, size, rng_seed):
            self.rng = random.Random(rng_seed)
            config = small_config(depth=depth, stream_ordered_reuse=is_stream_ordered, **SIZES[size])
            self.pair = Pair(config)

        @property
        def m(self):
            return self.pair.model

        @property
        def is_receiver(self):
            return self.pair.config.engine_type == EngineType.COMPLETION

        @precondition(lambda self: self.m.unfinished < 12)
        @rule(
            length=st.sampled_from([1, 3, 4, 5, 8, 17, 40, 97]),
            max_tokens=st.sampled_from([1, 2, 3, 20, 60]),
            min_tokens=st.sampled_from([0, 0, 4]),
            stops=st.sampled_from([0, 0, 6, 30]),
            priority=st.sampled_from([0, 0, -1, 7]),
        )
        def submit(self, length, max_tokens, min_tokens, stops, priority):
            # Few different tokens, so that prompts share prefixes where there is a cache.
            vocab = 2 if self.pair.config.prefix_cache else VOCAB
            head = [1] * (length // 2) if self.pair.config.prefix_cache else []
            prompt = [*head, *(self.rng.randrange(vocab) for _ in range(length - len(head)))]
            ask = self.pair.reserve if self.is_receiver else self.pair.submit
            ask(prompt, max_tokens=max_tokens, min_tokens=min_tokens, stop=range(stops), priority=priority)

        @precondition(lambda self: self.pair.config.engine_type != EngineType.NORMAL)
        @rule(which=st.integers(0, 40), token=st.integers(0, VOCAB - 1), has_drafts=st.booleans())
        def transfer(self, which, token, has_drafts):
            live = sorted(self.m.requests) or [1]
            uid = live[which % len(live)]
            if self.is_receiver and which < 36:
                self.pair.inject(uid, token, has_drafts)
                return
            self.pair.handoff(uid)
            self.pair.acknowledge(uid)

        @rule(mode=st.sampled_from([None, None, None, 0, 1, 2]))
        def schedule(self, mode):
            self.pair.schedule(mode)

        @rule(is_done=st.booleans())
        def engine_step(self, is_done):
            """What an engine does: one step ahead, the one before committed."""
            self.pair.schedule()
            while len(self.m.open) >= depth:
                self.pair.commit(self.rng)
                if is_done:
                    self.pair.step_done(self.m.committed)

        @precondition(lambda self: self.m.open)
        @rule(bad_rows=st.sampled_from([0.0, 0.0, 0.2]))
        def commit(self, bad_rows):
            self.pair.commit(self.rng, bad_rows=bad_rows)

        @rule(ahead=st.integers(-1, 2))
        def commit_in_wrong_order(self, ahead):
            if ahead != 0 or not self.m.open:
                self.pair.commit(self.rng, self.m.committed + 1 + ahead)

        @rule(share=st.floats(0, 1))
        def complete_a_prefix(self, share):
            m = self.m
            self.pair.step_done(m.done + round(share * (m.launched - m.done)))

        @rule(which=st.integers(0, 40), count=st.sampled_from([1, 1, 2, 5]))
        def abort(self, which, count):
            live = sorted(self.m.requests) or [0]
            self.pair.abort([live[(which + i) % len(live)] + (which == 40) for i in range(count)])

        @rule(which=st.integers(0, 40), keep=st.integers(0, 9))
        def finish(self, which, keep):
            live = sorted(self.m.requests) or [1]
            uid = live[which % len(live)]
            n_output = self.m.requests[uid].n_output if uid in self.m.requests else 0
            self.pair.finish(uid, min(keep, n_output + 1))

        @precondition(lambda self: self.m.unfinished < 12)
        @rule(which=st.integers(0, 40), at_prompt=st.booleans(), max_tokens=st.sampled_from([None, 1, 9]))
        def fork(self, which, at_prompt, max_tokens):
            live = sorted(self.m.requests) or [1]
            self.pair.fork(live[which % len(live)], max_tokens, at_prompt)

        @precondition(lambda self: len(self.m.pins) < 2)
        @rule(pool=st.sampled_from([0, 0, 1, 2, 3, 4]), which=st.lists(st.integers(0, 40), max_size=3))
        def pin(self, pool, which):
            held = sorted((self.m.main, self.m.main, self.m.swa, self.m.state, self.m.draft)[pool].ref) or [1]
            self.pair.pin(pool, [held[i % len(held)] for i in which])

        @rule(back=st.integers(0, 3))
        def unpin(self, back):
            self.pair.unpin(self.m.next_pin - back)

        @rule()
        def reset_prefix_cache(self):
            self.pair.reset_prefix_cache()

        @rule()
        def poll(self):
            self.pair.poll()

        @rule()
        def probe(self):
            self.pair.probe()

        def teardown(self):
            if hasattr(self, "pair"):
                self.pair.drain(self.rng)

    return Machine


def run_machine(depth, is_stream_ordered, examples, steps):
    print("seed", SEED)
    machine = seed(SEED)(machine_for(depth, is_stream_ordered))
    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=profile)


MODES = [(1, False), (1, True), (2, False), (2, True)]


@pytest.mark.parametrize(("depth", "is_stream_ordered"), MODES)
def test_random_commands_of_hypothesis_keep_core_and_reference_equal(depth, is_stream_ordered):
    run_machine(depth, is_stream_ordered, examples=20, steps=40)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("depth", "is_stream_ordered"), MODES)
def test_many_random_commands_of_hypothesis_keep_core_and_reference_equal(depth, is_stream_ordered):
    run_machine(depth, is_stream_ordered, examples=250, steps=100)
