"""Forks: children go on from their parent's tokens, over copies of its caches or computed again (engine.md 2.11)."""

import random
import time

import pytest
from native_driver import VOCAB, Driver, require, small_config

from deepinfer_contracts import FinishReason, Pool, StepFlags, StepKind, StepMode
from deepinfer_native import Core
from deepinfer_native.errors import ArgumentError, NotFoundError


def prompt_of(n, seed=0):
    r = random.Random(seed)
    return [r.randrange(VOCAB) for _ in range(n)]


def after_prompt(driver, request):
    while not request.output:
        driver.step()


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9, 16, 17])
@pytest.mark.parametrize("at_prompt", [False, True])
def test_child_of_a_computed_prompt_clones_and_prefills_nothing(length, at_prompt):
    driver = Driver(small_config(num_draft=1))
    parent = driver.submit(prompt_of(length), max_tokens=9, stop=())
    after_prompt(driver, parent)
    prefilled = driver.core.stats().tokens_prefill
    children = [driver.fork(parent, seed, at_prompt=at_prompt) for seed in (1, 2)]
    o = driver.schedule(StepMode.DECODE)
    assert o.seq_uid.tolist() == [parent.uid, *(c.uid for c in children)]
    assert o.flags & StepFlags.HAS_FORKS
    first = len(children[0].prompt) - 1  # its first position to be written
    tables = [o.bt_ids[a:b].tolist() for a, b in zip(o.bt_offsets[:-1], o.bt_offsets[1:], strict=True)]
    for child, table in zip(children, tables[1:], strict=True):
        require(table[: first // 4] == tables[0][: first // 4], "full blocks are shared")
        require(not set(table[first // 4 :]) & set(tables[0]), "the block to be written is its own", child.uid)
    expected = [[tables[0][first // 4], table[first // 4]] for table in tables[1:]] if first % 4 else []
    assert o.clone_blocks.tolist() == expected
    pairs = zip(o.swa_slot.tolist()[1:], o.state_slot.tolist()[1:], strict=True)
    source = (int(o.swa_slot[0]), int(o.state_slot[0]))
    want = [[pool, source[i], slots[i]] for slots in pairs for i, pool in enumerate((Pool.SWA, Pool.STATE))]
    assert o.clone_slots.tolist() == want
    driver.retire()
    driver.run(check=True)
    driver.require_expected()
    assert driver.core.stats().tokens_prefill == prefilled


CASES = {
    "plain": {},
    "depth2": {"depth": 2},
    "drafts": {"num_draft": 3},
    "depth2_drafts": {"depth": 2, "num_draft": 2},
    "prefix": {"prefix_cache": True, "depth": 2},
    "one_token_blocks": {"block_size": 1, "num_blocks": 300, "ratios_sparse": (1,), "ratios_dense": ()},
    "large_blocks": {"block_size": 32, "num_blocks": 40},
    "small_pool": {"num_blocks": 20, "depth": 2},
    "chunks": {"max_chunk": 5},
    "no_pools": {"num_swa_slots": 0, "num_state_slots": 0, "window": 0},
    "stream_ordered": {"depth": 2, "stream_ordered_reuse": True},
    "by_length": {"row_order": "length_desc", "depth": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_children_made_at_any_time_give_the_undisturbed_tokens(case):
    driver = Driver(small_config(**{"max_num_seqs": 8, **CASES[case]}))
    r = random.Random(case)
    requests = [driver.submit(prompt_of(n, n), max_tokens=30, min_tokens=3) for n in (1, 7, 8, 30)]
    cloned = 0
    for _ in range(400):
        if not driver.core.unfinished:
            break
        live = [x for x in requests if x.reason == FinishReason.NONE]
        if live and len(requests) < 16 and r.random() < 0.3:
            requests.append(driver.fork(r.choice(live), at_prompt=r.random() < 0.5))
        cloned += bool(driver.step().flags & StepFlags.HAS_FORKS)
        driver.core.check()
    driver.run(check=True)
    driver.require_expected()
    assert len(requests) > 6
    assert cloned > 0


def test_children_of_a_queued_prompt_wait_for_it_and_clone():
    driver = Driver(small_config(max_chunk=8))
    parent = driver.submit(prompt_of(20), max_tokens=6, stop=())
    children = [driver.fork(parent, seed) for seed in (1, 2, 3)]
    driver.run(check=True)
    driver.require_expected()
    assert driver.core.stats().tokens_prefill == 20
    assert [len(c.output) for c in children] == [6, 6, 6]


def test_children_of_a_waiting_child_are_cloned_one_step_later():
    driver = Driver(small_config())
    parent = driver.submit(prompt_of(10), max_tokens=6, stop=())
    child = driver.fork(parent)
    grandchild = driver.fork(child, at_prompt=True)
    after_prompt(driver, parent)
    first = driver.schedule(StepMode.DECODE)
    driver.retire()
    second = driver.schedule(StepMode.DECODE).clone_slots.copy()
    assert first.seq_uid.tolist() == [parent.uid, child.uid]
    assert second[:, 1].tolist() == [int(first.swa_slot[1]), int(first.state_slot[1])]
    driver.retire()
    driver.run(check=True)
    driver.require_expected([parent, child, grandchild])
    assert driver.core.stats().tokens_prefill == 10


def test_child_whose_parent_ends_first_is_computed_from_its_tokens():
    driver = Driver(small_config())
    parent = driver.submit(prompt_of(10), max_tokens=1, stop=())
    child = driver.fork(parent, max_tokens=5)
    driver.run(check=True)
    driver.require_expected()
    assert driver.core.stats().tokens_prefill == 20
    assert len(child.output) == 5


def test_child_without_a_free_slot_is_queued():
    driver = Driver(small_config(num_state_slots=2))
    parent = driver.submit(prompt_of(10), max_tokens=5, stop=())
    after_prompt(driver, parent)
    driver.fork(parent)
    o = driver.schedule(StepMode.DECODE)
    assert (o.num_reqs, len(o.clone_slots), int(o.flags & StepFlags.HAS_FORKS)) == (1, 0, 0)
    driver.retire()
    driver.run(check=True)
    driver.require_expected()


def test_parent_that_ran_past_its_ring_is_not_cloned():
    driver = Driver(small_config())
    parent = driver.submit(prompt_of(10), max_tokens=30, stop=())
    while len(parent.output) < 6:
        driver.step()
    child = driver.fork(parent, at_prompt=True)
    assert driver.schedule(StepMode.DECODE).seq_uid.tolist() == [parent.uid]
    driver.retire()
    driver.run(check=True)
    driver.require_expected([parent, child])
    assert driver.core.stats().tokens_prefill == 20


def test_parent_that_was_found_in_the_cache_behind_its_prompt_is_not_cloned_there():
    # The ring is long enough for the prompt, but after the preemption it was filled from behind the prompt only.
    driver = Driver(small_config(prefix_cache=True, swa_ring=64, num_blocks=22))
    parent = driver.submit(prompt_of(17), max_tokens=50, stop=())
    while len(parent.output) < 20:
        driver.step()
    other = driver.submit(prompt_of(37, 1), max_tokens=45, stop=())
    while parent.uid not in driver.step().preempted_uid.tolist():
        require(driver.core.unfinished == 2, "the parent was not preempted")
    child = driver.fork(parent, at_prompt=True)
    driver.core.abort([other.uid])
    while not (o := driver.step()).hit_tokens.any():
        require(driver.core.unfinished, "the parent was not found in the cache")
    require(int(o.hit_tokens[0]) > len(parent.prompt), "the hit covers the prompt")
    driver.run(check=True)
    driver.require_expected([parent, child])


def test_children_run_before_prompts_that_never_ran():
    driver = Driver(small_config(max_num_seqs=2, num_state_slots=2))
    parent = driver.submit(prompt_of(10), max_tokens=3, stop=())
    other = driver.submit(prompt_of(11), max_tokens=3, stop=())
    after_prompt(driver, parent)
    child = driver.fork(parent)
    driver.run()
    driver.require_expected()
    prefills = [uid for _, kind, rows in driver.steps if kind == StepKind.PREFILL for uid, _ in rows]
    assert prefills == [parent.uid, child.uid, other.uid]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("moment", ["waiting", "parent", "cloning", "running"])
def test_abort_of_a_child_in_every_phase_leaks_nothing(depth, moment):
    driver = Driver(small_config(depth=depth))
    parent = driver.submit(prompt_of(10), max_tokens=12, stop=())
    if moment != "waiting":
        after_prompt(driver, parent)
    child = driver.fork(parent)
    if moment == "parent":
        driver.core.abort([parent.uid])
    elif moment == "waiting":
        driver.core.abort([child.uid])
    else:
        driver.schedule(StepMode.DECODE)
        if moment == "running":
            driver.retire()
            driver.step()
        driver.core.abort([child.uid])
        driver.core.abort([child.uid])
        driver.core.probe()
    driver.core.check()
    while driver.open:
        driver.retire()
        driver.core.check()
    driver.run(check=True)
    ended, other = (parent, child) if moment == "parent" else (child, parent)
    assert ended.reason == FinishReason.ABORT
    driver.require_expected([other])
    stats = driver.core.stats()
    assert [p.free for p in (stats.main, stats.swa, stats.state)] == [
        p.total for p in (stats.main, stats.swa, stats.state)
    ]


def test_source_of_a_clone_is_kept_until_the_copy_is_done():
    driver = Driver(small_config(depth=2, num_state_slots=4))
    parent = driver.submit(prompt_of(10), max_tokens=2, stop=())
    after_prompt(driver, parent)
    driver.fork(parent, max_tokens=9)
    o = driver.schedule(StepMode.DECODE)
    sources = o.clone_slots[:, 1].tolist()
    driver.core.abort([parent.uid])
    driver.poll()
    stats = driver.core.stats()
    assert (stats.swa.limbo, stats.state.limbo) == (1, 1)
    driver.submit(prompt_of(3), max_tokens=1, stop=())
    later = driver.schedule(StepMode.TRY_PREFILL)
    assert not {int(later.swa_slot[0]), int(later.state_slot[0])} & set(sources)
    while driver.open:
        driver.retire()
    driver.run(check=True)


def test_child_inherits_sampling_and_takes_its_own_seed_and_budget():
    driver = Driver(small_config(num_draft=1))
    parent = driver.submit(
        prompt_of(5), max_tokens=9, min_tokens=4, stop=(5, 6), seed=3, temperature=0.5, top_k=7, priority=-2
    )
    after_prompt(driver, parent)
    child = driver.fork(parent, seed=2**64 - 1, max_tokens=3)
    o = driver.schedule(StepMode.DECODE)
    s = driver.core.pack_sampler(o.step_id)
    assert o.seq_uid.tolist() == [parent.uid, child.uid]
    assert s.seed.tolist() == [3, 2**64 - 1]
    assert s.temperature.tolist() == [0.5, 0.5]
    assert s.top_k.tolist() == [7, 7]
    assert s.stop_ids.tolist() == [[5, 6], [5, 6]]
    assert s.sample_pos.tolist() == [6, 6]
    # The parent has 3 of its 4 suppressed tokens left, and so has the child.
    assert s.eos_suppress.tolist() == [[row, stop] for row in range(4) for stop in (5, 6)]
    driver.retire()
    driver.run()
    driver.require_expected()
    assert len(child.output) <= 3


def test_source_outlives_a_parent_that_ends_in_an_older_step():
    driver = Driver(small_config(depth=2))
    parent = driver.submit(prompt_of(10), max_tokens=3, stop=())
    after_prompt(driver, parent)
    driver.schedule(StepMode.DECODE)
    driver.schedule(StepMode.DECODE)
    driver.retire()
    child = driver.fork(parent, max_tokens=5)
    o = driver.schedule(StepMode.DECODE)  # the parent certainly ends in the step before: only the child is here
    assert (o.seq_uid.tolist(), len(o.clone_slots)) == ([child.uid], 2)
    driver.retire()
    assert parent.reason == FinishReason.LENGTH
    assert driver.core.stats().swa.limbo == 1
    driver.submit(prompt_of(4), max_tokens=3, stop=())
    later = driver.schedule(StepMode.TRY_PREFILL)
    assert not {int(later.swa_slot[0]), int(later.state_slot[0])} & set(o.clone_slots[:, 1].tolist())
    while driver.open:
        driver.retire()
    driver.run(check=True)
    driver.require_expected()


@pytest.mark.parametrize("steps", range(8))
def test_rejected_drafts_in_the_ring_count_as_overwritten(steps):
    driver = Driver(small_config(num_draft=3, backtrack=6), good_drafts=0)
    parent = driver.submit(prompt_of(13), max_tokens=30, stop=())
    after_prompt(driver, parent)
    for _ in range(steps):
        driver.step()
    require(len(parent.output) == steps + 1, "a draft was accepted")
    driver.fork(parent, at_prompt=True)
    driver.run(check=True)
    driver.require_expected()


def test_zero_list_stays_with_prompts_and_comes_before_clones():
    driver = Driver(small_config(zero_swa_on_alloc=True))
    parent = driver.submit(prompt_of(9), max_tokens=5, stop=())
    o = driver.schedule()
    assert o.zero_slots.tolist() == [[Pool.STATE, o.state_slot[0]], [Pool.SWA, o.swa_slot[0]]]
    driver.retire()
    driver.fork(parent)
    o = driver.schedule(StepMode.DECODE)
    assert (len(o.zero_slots), len(o.clone_slots)) == (0, 2)
    driver.retire()
    driver.run()
    driver.require_expected()


def test_fork_of_nothing_is_refused():
    driver = Driver(small_config())
    parent = driver.submit(prompt_of(5), max_tokens=1, stop=())
    with pytest.raises(NotFoundError, match="request 9 is unknown or already finished"):
        driver.core.fork(9, seed=0)
    with pytest.raises(ArgumentError, match="max_tokens: is 0, at least 1 is needed"):
        driver.core.fork(parent.uid, seed=0, max_tokens=0)
    with pytest.raises(ArgumentError, match="fork: an argument does not fit"):
        driver.core.fork(parent.uid, seed=-1)
    driver.run()
    with pytest.raises(NotFoundError, match="request 1 is unknown or already finished"):
        driver.core.fork(parent.uid, seed=0)


def test_children_of_thousands_of_aborted_prompts_are_queued_in_one_go():
    # A walk over the queue for each of them takes 18,000 * 9,000 steps, several seconds.
    core = Core(small_config(validation="off"))
    parents = [core.submit([1, 2, 3], max_tokens=4) for _ in range(6000)]
    children = [core.fork(uid, seed=seed) for uid in parents for seed in range(3)]
    core.submit([1, 2], max_tokens=4)
    core.abort(parents)
    begin = time.process_time()
    core.probe()
    assert time.process_time() - begin < 1
    assert core.schedule_local().seq_uid.tolist()[:2] == children[:2]
    core.check()
