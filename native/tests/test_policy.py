"""Admission order, step kinds, pressure and the bounds of spec/engine.md 2.7."""

import pytest
from native_driver import Driver, small_config

from deepinfer_contracts import FinishReason, StepFlags, StepKind, StepMode


def first_steps(driver):
    """uid -> step of its first row."""
    out = {}
    for step, _, rows in driver.steps:
        for uid, _ in rows:
            out.setdefault(uid, step)
    return out


def test_first_chunks_follow_submission_order():
    driver = Driver(small_config(max_chunk=8))
    requests = [driver.submit([n] * (1 + 7 * n % 30), max_tokens=3, stop=()) for n in range(10)]
    driver.run()
    steps = [first_steps(driver)[r.uid] for r in requests]
    assert steps == sorted(steps)


def test_smaller_priority_goes_first_and_half_run_prompts_before_all():
    driver = Driver(small_config(max_chunk=8))
    long = driver.submit([1] * 20, max_tokens=1, priority=5)
    driver.step()
    late = driver.submit([2] * 4, max_tokens=1, priority=5)
    urgent = driver.submit([3] * 4, max_tokens=1, priority=-1)
    driver.run()
    order = [[uid for uid, _ in rows] for _, _, rows in driver.steps]
    assert order == [[long.uid], [long.uid], [long.uid, urgent.uid, late.uid]]


def test_step_stops_after_the_first_chunked_prompt():
    driver = Driver(small_config(max_chunk=8))
    driver.submit([1] * 4, max_tokens=1)
    driver.submit([2] * 20, max_tokens=1)
    driver.submit([3] * 4, max_tokens=1)
    o = driver.schedule()
    assert o.seqlens_q.tolist() == [4, 8]
    assert o.is_last_chunk.tolist() == [1, 0]


def test_prefill_points_come_at_their_intervals():
    driver = Driver(small_config(prefill_interval_all=4, prefill_interval_any=6))
    driver.submit([1, 2], max_tokens=60, stop=())
    driver.step()
    points = []
    for _ in range(13):
        points.append(driver.core.probe().point)
        driver.step()
    # d = 0 is an ALL point (2); then 4 and 8 and 12 are ALL, 6 and 12 ANY (1), which wins
    assert points == [2, 0, 0, 0, 2, 0, 1, 0, 2, 0, 0, 0, 1]


def test_request_waits_for_the_next_point_while_others_run():
    driver = Driver(small_config(prefill_interval_all=4, prefill_interval_any=6))
    driver.submit([1, 2], max_tokens=60, stop=())
    driver.step()
    driver.step()
    late = driver.submit([3, 4], max_tokens=2, stop=())
    for _ in range(10):
        driver.step()
    first = first_steps(driver)[late.uid]
    assert first == 6  # decode steps 2 .. 5, then d == 4


def test_request_does_not_wait_when_nothing_runs():
    driver = Driver(small_config(prefill_interval_all=50, prefill_interval_any=60))
    driver.submit([1, 2], max_tokens=4, stop=())
    driver.run()
    driver.submit([3, 4], max_tokens=1, stop=())
    assert driver.step().kind == StepKind.PREFILL


def test_burst_limit_lets_running_requests_decode():
    driver = Driver(
        small_config(max_prefill_burst=2, max_chunk=4, max_num_seqs=8, num_swa_slots=12, num_state_slots=12)
    )
    driver.submit([1, 2], max_tokens=60, stop=())
    for _ in range(4):
        driver.submit([3] * 12, max_tokens=30, stop=())
    for _ in range(9):
        driver.step()
    kinds = [kind for _, kind, _ in driver.steps]
    assert StepKind.DECODE in kinds[:4]
    longest = max(len(run) for run in "".join(str(int(k)) for k in kinds).split("0"))
    assert longest == 2


def test_empty_prefill_mode_resets_the_count_and_schedules_nothing():
    driver = Driver(small_config())
    driver.submit([1, 2], max_tokens=60, stop=())
    driver.step()
    driver.step()
    assert driver.core.probe().point == 0
    o = driver.core.schedule(StepMode.EMPTY_PREFILL)
    assert (o.num_reqs, o.step_id, o.flags, o.kind) == (0, 3, StepFlags.EMPTY, StepKind.PREFILL)
    o.validate(driver.core.limits, 2)
    assert driver.core.probe().point == 2


def test_watermark_stops_new_prompts_but_not_half_run_ones():
    driver = Driver(small_config(num_blocks=21, prefill_watermark=0.5, max_chunk=8))
    long = driver.submit([1] * 60, max_tokens=1, stop=())
    waiting = driver.submit([2] * 4, max_tokens=1, stop=())
    driver.run()
    assert [uid for _, _, rows in driver.steps for uid, _ in rows] == [long.uid] * 8 + [waiting.uid]


@pytest.mark.parametrize("head", ["continuation", "too_long"])
def test_watermark_holds_for_those_behind_a_head_that_passes(head):
    """The last chunk of a half-run prompt, and a prompt that is only refused, let nobody else in."""
    driver = Driver(small_config(num_blocks=21, prefill_watermark=0.5, max_chunk=32))
    long = driver.submit([1] * 44, max_tokens=3, stop=())
    driver.schedule(StepMode.TRY_PREFILL)
    driver.retire()
    if head == "too_long":
        driver.schedule(StepMode.TRY_PREFILL)
        driver.retire()
        driver.submit([3] * 97)
    waiting = driver.submit([2] * 4, max_tokens=1, stop=())
    driver.core.probe()
    o = driver.schedule(StepMode.TRY_PREFILL)
    assert o.seq_uid.tolist() == ([] if head == "too_long" else [long.uid])
    if o.num_reqs:
        driver.retire()
    driver.run()
    driver.require_expected([long, waiting])


def test_reserve_counts_a_prompt_whose_last_chunk_is_in_flight():
    driver = Driver(small_config(num_blocks=4, depth=2))
    first = driver.submit([1] * 8, max_tokens=3, stop=())
    driver.schedule(StepMode.TRY_PREFILL)
    second = driver.submit([2] * 4, max_tokens=3, stop=())
    assert driver.schedule(StepMode.TRY_PREFILL).num_reqs == 0  # the third block is what the first needs next
    driver.run()
    driver.require_expected([first, second])
    assert driver.core.stats().preemptions == 0


def test_too_long_prompt_is_refused_without_waiting():
    driver = Driver(small_config(num_blocks=6))
    running = driver.submit([1, 2], max_tokens=10, stop=())
    driver.step()
    by_pool, by_model = driver.submit([2] * 21), driver.submit([3] * 97)
    o = driver.step()
    assert o.ignored_uid.tolist() == [by_pool.uid, by_model.uid]
    assert o.ignored_reason.tolist() == [FinishReason.TOO_LONG] * 2
    assert (by_pool.reason, by_model.reason) == (FinishReason.TOO_LONG,) * 2
    assert running.reason == FinishReason.NONE


def test_full_pool_without_growth_preempts_nobody():
    driver = Driver(small_config(num_blocks=9, block_size=16, max_model_len=64, max_num_batched_tokens=80))
    requests = [driver.submit([n] * 17, max_tokens=12, stop=()) for n in range(4)]
    driver.step()
    assert driver.core.stats().main.free == 0
    driver.run()
    assert driver.core.stats().preemptions == 0
    driver.require_expected(requests)


def test_preempted_request_reenters_before_new_ones():
    driver = Driver(small_config(num_blocks=14, prefill_interval_all=1, prefill_interval_any=1))
    for n in range(3):
        driver.submit([n] * 14, max_tokens=30, stop=())
    late = [driver.submit([9] * 4, max_tokens=2, stop=()) for _ in range(3)]
    preempted = set()
    while driver.core.unfinished:
        o = driver.step()
        new = set(o.seq_uid.tolist())
        if preempted and o.kind == StepKind.PREFILL and o.num_reqs:
            assert o.seq_uid.tolist()[0] in preempted or not (new & {r.uid for r in late})
        preempted |= set(o.preempted_uid.tolist())
        preempted -= new
    driver.require_expected()
    assert driver.core.stats().preemptions > 0


def test_victim_has_the_most_output():
    driver = Driver(small_config(num_blocks=12, max_num_seqs=3))
    old = driver.submit([1] * 4, max_tokens=60, stop=())
    for _ in range(9):
        driver.step()
    driver.submit([2] * 10, max_tokens=60, stop=())
    while True:
        o = driver.step()
        if len(o.preempted_uid):
            break
    assert o.preempted_uid.tolist() == [old.uid]


@pytest.mark.parametrize("blocks", [16, 18, 20, 24])
def test_held_requests_run_or_are_preempted_within_depth_plus_one_steps(blocks):
    driver = Driver(small_config(num_blocks=blocks, depth=2))
    for n in range(8):
        driver.submit([n] * (5 + 3 * n), max_tokens=30, stop=())
    held = {}
    while driver.core.unfinished:
        o = driver.step()
        if o.kind == StepKind.DECODE and o.num_reqs:
            now = set(o.held_uid.tolist())
            for uid in now:
                held[uid] = held.get(uid, 0) + 1
                assert held[uid] <= driver.config.depth
            held = {uid: n for uid, n in held.items() if uid in now}
    driver.require_expected()


def test_no_preemption_without_a_need():
    driver = Driver(small_config(num_blocks=18, depth=2))
    for n in range(8):
        driver.submit([n] * (5 + 3 * n), max_tokens=30, stop=())
    while driver.core.unfinished:
        before = driver.core.stats()
        free = before.main.free + before.main.limbo
        o = driver.step()
        if len(o.preempted_uid):
            assert free < driver.config.max_num_seqs


def test_identity_map_is_flagged_exactly_when_every_row_stays():
    driver = Driver(small_config(depth=2))
    for n in range(3):
        driver.submit([n] * 3, max_tokens=4 + 3 * n, stop=())
    previous = None
    seen = set()
    while driver.core.unfinished:
        o = driver.step()
        uids = o.seq_uid.tolist()
        for i, row in enumerate(o.remap.tolist()):
            if row >= 0:
                assert previous[row] == uids[i]
        is_identity = o.num_reqs > 0 and o.remap.tolist() == list(range(o.num_reqs))
        assert bool(o.flags & StepFlags.REMAP_IDENTITY) == is_identity
        seen.add(is_identity)
        previous = uids if o.num_reqs else previous
    assert seen == {True, False}


def test_same_trace_gives_the_same_bytes():
    def trace():
        driver = Driver(small_config(num_blocks=18, depth=2, num_draft=1))
        for n in range(8):
            driver.submit([n] * (5 + 3 * n), max_tokens=20)
        out = []
        while driver.core.unfinished:
            o = driver.step()
            out.append(b"".join(getattr(o, f).tobytes() for f in o.FIELDS if hasattr(getattr(o, f), "tobytes")))
        return out

    assert trace() == trace()


@pytest.mark.parametrize(("dp_size", "d"), [(1, 0), (2, 3)])
def test_empty_decode_counts_as_a_step_of_the_group_only(dp_size, d):
    core = Driver(small_config(dp_size=dp_size)).core
    for _ in range(3):
        assert core.schedule(StepMode.DECODE).num_reqs == 0
    assert core.probe().decode_since_prefill == d
    core.schedule(StepMode.EMPTY_PREFILL)
    assert core.probe().decode_since_prefill == 0
