"""Event batches: lifetime, growth of the ring, order and contents."""

import gc

import numpy as np
import pytest
from native_driver import Driver, small_config

from deepinfer_contracts import EventBatch, EventFlags, EventKind, FinishReason
from deepinfer_native import StaleBatchError


def running(**changes):
    driver = Driver(small_config(**changes))
    driver.submit([1, 2, 3], max_tokens=60, stop=())
    driver.step()
    return driver


def next_batch(driver):
    o = driver.schedule()
    batch = driver.core.commit(driver.open.pop(0)[0], driver.sample(o.kind, [(1, 0, driver.config.q, 0, 0, -1)]))
    driver.follower.feed(batch)
    driver.done(o.step_id)
    return batch


@pytest.mark.parametrize("depth", [1, 2])
def test_batch_is_readable_for_depth_more_batches_and_stale_after(depth):
    driver = running(depth=depth)
    batch = next_batch(driver)
    for _ in range(depth):
        next_batch(driver)
        assert batch.output_index.tolist() == [2]
    next_batch(driver)
    with pytest.raises(StaleBatchError, match=rf"batch of step 2 was recycled at step {3 + depth}"):
        _ = batch.token_id
    assert batch.is_stale
    assert driver.core.stats().event_ring_grown == 0


def test_kept_array_is_never_overwritten_and_the_ring_grows_instead():
    driver = running()
    kept = [next_batch(driver).token_id for _ in range(6)]
    views = [k[:1] for k in kept]
    values = [k.tolist() for k in kept]
    del kept
    for _ in range(6):
        next_batch(driver)
    assert [v.tolist() for v in views] == values
    stats = driver.core.stats()
    assert stats.event_ring_grown > 0
    arenas = stats.event_arenas
    del views
    gc.collect()
    for _ in range(20):
        next_batch(driver)
    assert driver.core.stats().event_arenas <= arenas + 1


def test_copy_outlives_everything_and_is_a_record():
    driver = running()
    copy = next_batch(driver).copy()
    values = copy.token_id.tolist()
    for _ in range(5):
        next_batch(driver)
    assert type(copy) is EventBatch
    assert copy.token_id.tolist() == values
    copy.validate(driver.core.limits, 2)


def test_release_twice_is_harmless():
    driver = running()
    batch = next_batch(driver)
    assert batch.release()
    assert not batch.release()
    with pytest.raises(StaleBatchError, match="was released"):
        _ = batch.seq_uid


def test_column_that_was_read_before_is_stale_with_its_batch():
    driver = running(depth=1)
    batch = next_batch(driver)
    assert batch.output_index.tolist() == [2]
    for _ in range(2):
        next_batch(driver)
    with pytest.raises(StaleBatchError, match="was recycled"):
        _ = batch.output_index


def test_release_of_a_recycled_batch_leaves_the_one_after_it_readable():
    driver = running(depth=1)
    old = next_batch(driver)
    next_batch(driver)
    new = next_batch(driver)
    column = new.output_index
    assert (old.is_stale, new.is_stale) == (True, False)
    assert old.release()
    assert new.output_index is column
    kept = column.tolist()
    for _ in range(4):
        next_batch(driver)
    assert column.tolist() == kept


def test_batches_after_a_released_one_are_readable():
    driver = running(depth=1)
    for n in range(2, 9):
        batch = next_batch(driver)
        assert batch.output_index.tolist() == [n]
        assert batch.release()
        del batch
    assert driver.core.stats().event_ring_grown == 0


def test_columns_follow_the_number_of_events():
    driver = Driver(small_config(num_draft=3), good_drafts=3)
    for n in range(3):
        driver.submit([n, 9, 9], max_tokens=12 + 5 * n, stop=())
    driver.step()
    counts = set()
    while driver.core.unfinished:
        o = driver.schedule()
        batch = driver.commit()
        driver.done(o.step_id)
        counts.add(len(batch))
        assert {len(getattr(batch, name)) for name in ("seq_uid", "token_id", "accepted")} == {len(batch)}
        del batch
    assert len(counts) > 2


def test_unknown_field_is_an_attribute_error():
    batch = next_batch(running())
    with pytest.raises(AttributeError, match="no field tokens"):
        _ = batch.tokens


def test_empty_poll_takes_no_arena():
    driver = running()
    batch = next_batch(driver)
    for _ in range(5):
        empty = driver.core.poll_events()
        assert (len(empty), empty.seq_uid.tolist(), empty.step_id) == (0, [], 0)
    assert batch.output_index.tolist() == [2]


def test_events_come_in_row_order_with_drafts_before_the_sampled_token():
    driver = Driver(small_config(num_draft=3), good_drafts=3)
    for n in range(3):
        driver.submit([n, 9, 9], max_tokens=12, stop=())
    driver.step()
    accepted = set()
    while driver.core.unfinished:
        o = driver.schedule()
        batch = driver.commit()
        driver.done(o.step_id)
        uids = [u for i, u in enumerate(batch.seq_uid.tolist()) if i == 0 or batch.seq_uid[i - 1] != u]
        assert uids == o.seq_uid.tolist()
        flags = batch.flags.tolist()
        ends = [i for i in range(len(batch)) if i + 1 == len(batch) or batch.seq_uid[i + 1] != batch.seq_uid[i]]
        for i in range(len(batch)):
            if i not in ends:
                assert flags[i] & EventFlags.FROM_DRAFT
                assert (batch.drafted[i], batch.accepted[i]) == (0, 0)
            elif not flags[i] & EventFlags.LAST:
                assert not flags[i] & EventFlags.FROM_DRAFT
                assert batch.drafted[i] == 3
                accepted.add(int(batch.accepted[i]))
    assert len(accepted) > 1


def test_bare_events_follow_the_rows():
    driver = Driver(small_config())
    first, second = driver.submit([1, 2], stop=()), driver.submit([3, 4], stop=())
    driver.schedule()
    driver.core.abort([first.uid])
    batch = driver.commit()
    assert batch.seq_uid.tolist() == [second.uid, first.uid]
    assert batch.kind.tolist() == [EventKind.TOKEN, EventKind.FINISH]
    assert batch.token_id[1] == -1
    assert batch.finish_reason.tolist() == [FinishReason.NONE, FinishReason.ABORT]


def test_logprobs_are_floored_and_alternatives_are_stored():
    driver = Driver(small_config())
    driver.submit([1, 2], stop=())
    driver.submit([3, 4], stop=())
    o = driver.schedule()
    step, kind, rows = driver.open.pop(0)
    out = driver.sample(kind, rows)
    out.sampled_logprob[:] = [-np.inf, -0.25]
    out.top_ids = np.array([[5, 6, -1], [7, 8, 9]], np.int32)
    out.top_logprobs = np.array([[-1, -np.inf, 0], [-1, -2, -3]], np.float32)
    batch = driver.core.commit(step, out)
    assert batch.logprob.tolist() == [-9999.0, -0.25]
    assert batch.top_offset.tolist() == [0, 2]
    assert batch.top_count.tolist() == [2, 3]
    assert batch.top_ids.tolist() == [5, 6, 7, 8, 9]
    assert batch.top_logprobs.tolist() == [-1, -9999, -1, -2, -3]
    batch.copy().validate(driver.core.limits, 2)
    assert o.num_reqs == 2


def test_confidences_are_stored_with_the_last_token_of_a_step():
    driver = Driver(small_config(num_draft=2))
    driver.submit([1, 2], stop=())
    driver.step()
    driver.schedule()
    step, kind, rows = driver.open.pop(0)
    out = driver.sample(kind, rows)
    out.confidence = np.array([[0.75, 0.5]], np.float32)
    batch = driver.core.commit(step, out)
    assert batch.conf_offset.tolist() == [-1] * (len(batch) - 1) + [0]
    assert batch.confidences.tolist() == [0.75, 0.5]
