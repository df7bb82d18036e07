"""Abort in every phase of spec/engine.md 4.4: what happens now, and when the units come back."""

import pytest
from native_driver import Driver, small_config

from deepinfer_contracts import AbortStatus, FinishReason, StepMode


def abort(driver, request):
    return driver.core.abort([request.uid])[0]


def require_all_free(driver):
    driver.core.check()
    driver.core.audit()
    stats = driver.core.stats()
    assert stats.main.free == stats.main.total
    assert stats.swa.free == stats.swa.total
    assert stats.state.free == stats.state.total


def test_waiting_request_leaves_the_queue_and_holds_nothing():
    driver = Driver(small_config())
    request = driver.submit([1, 2, 3])
    assert abort(driver, request) == AbortStatus.ACCEPTED
    driver.poll()
    assert (request.reason, request.final_index, request.output) == (FinishReason.ABORT, 0, [])
    assert driver.core.unfinished == 0
    require_all_free(driver)


def test_between_two_chunks_everything_comes_back_at_once():
    driver = Driver(small_config(max_chunk=8))
    request = driver.submit(list(range(30)))
    driver.step()
    stats = driver.core.stats()
    assert (stats.prefill, stats.main.held, stats.state.held) == (1, 8, 1)
    abort(driver, request)
    driver.poll()
    assert request.reason == FinishReason.ABORT
    require_all_free(driver)


def test_chunk_in_flight_goes_to_limbo_until_the_step_is_done():
    driver = Driver(small_config(max_chunk=8))
    request = driver.submit(list(range(30)))
    driver.schedule()
    abort(driver, request)
    driver.poll()
    stats = driver.core.stats()
    assert request.reason == FinishReason.ABORT
    assert (stats.zombie, stats.main.held, stats.main.limbo, stats.swa.limbo) == (1, 0, 8, 1)
    assert abort(driver, request) == AbortStatus.ALREADY_FINISHED
    driver.commit()
    assert driver.core.stats().main.limbo == 8
    driver.done(1)
    assert driver.core.stats().zombie == 0
    require_all_free(driver)


def test_running_without_a_step_in_flight_is_retired_at_once():
    driver = Driver(small_config())
    request = driver.submit([1, 2, 3], stop=())
    driver.step()
    driver.step()
    abort(driver, request)
    driver.poll()
    assert (request.reason, request.final_index) == (FinishReason.ABORT, 2)
    require_all_free(driver)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_running_in_flight_becomes_a_zombie_and_its_results_are_dropped(in_flight):
    driver = Driver(small_config(depth=2))
    request = driver.submit([1, 2, 3], stop=(), max_tokens=30)
    for _ in range(3):
        driver.step()
    while len(driver.open) > 0:
        driver.retire()
    for _ in range(in_flight):
        driver.schedule(StepMode.DECODE)
    n_output = len(request.output)
    abort(driver, request)
    driver.poll()
    stats = driver.core.stats()
    assert (stats.zombie, stats.main.held) == (1, 0)
    assert stats.main.limbo > 0
    while driver.open:
        driver.core.check()
        driver.retire()
    assert len(request.output) == n_output
    assert driver.core.stats().overrun_rows == in_flight
    require_all_free(driver)


def test_preempted_with_a_stale_step_in_flight_is_skipped_by_its_commit():
    driver = Driver(small_config(num_blocks=12, depth=2))
    first = driver.submit([1] * 15, stop=(), max_tokens=60)
    second = driver.submit([2] * 15, stop=(), max_tokens=60)
    preempted = []
    while not preempted:
        o = driver.step()
        preempted = o.preempted_uid.tolist()
    request = first if preempted[0] == first.uid else second
    n_output = len(request.output)
    abort(driver, request)
    driver.poll()
    assert request.reason == FinishReason.ABORT
    driver.run(check=True)
    assert len(request.output) == n_output
    require_all_free(driver)


def test_finished_and_unknown_uids_are_told_apart():
    driver = Driver(small_config())
    request = driver.submit([1, 2, 3], max_tokens=1)
    driver.run()
    assert abort(driver, request) == AbortStatus.ALREADY_FINISHED
    assert driver.core.abort([999, 0]) == [AbortStatus.UNKNOWN, AbortStatus.UNKNOWN]


def test_submit_and_abort_before_the_engine_looks_never_runs():
    driver = Driver(small_config())
    request, other = driver.submit([1, 2, 3]), driver.submit([4, 5, 6])
    abort(driver, request)
    o = driver.schedule()
    assert o.seq_uid.tolist() == [other.uid]
    assert o.finished_uid.tolist() == [request.uid]
    assert o.finished_reason.tolist() == [FinishReason.ABORT]


def test_abort_twice_gives_one_event():
    driver = Driver(small_config())
    request = driver.submit([1, 2, 3])
    assert [abort(driver, request), abort(driver, request)] == [AbortStatus.ACCEPTED] * 2
    driver.poll()
    driver.poll()
    assert request.reason == FinishReason.ABORT
    assert driver.core.stats().aborts == 1


def test_aborts_of_many_queued_requests_need_more_than_one_batch_and_lose_nothing():
    driver = Driver(small_config())
    requests = [driver.submit([1, 2, 3]) for _ in range(500)]
    driver.core.abort([r.uid for r in requests])
    batches = 0
    while any(r.reason == FinishReason.NONE for r in requests):
        driver.poll()
        batches += 1
    assert batches > 1
    assert driver.core.stats().queued_events == 0
    require_all_free(driver)
