"""The host's half of tokens that a step in flight decides, against its plain version and against what really came."""

import numpy as np
import pytest
from native_driver import VOCAB, Driver, require, small_config
from test_pack_reference import geometry, ngram_table

from deepinfer_contracts import StepKind
from deepinfer_native.errors import OrderError
from deepinfer_native.reference_pack import FeedRow, Row, complete_window, ngram_window, pack_feed


def feed_rows(driver, o):
    pad = [VOCAB - 1] * driver.config.num_draft
    rows = []
    for i, uid in enumerate(o.seq_uid.tolist()):
        drafts = driver.drafts.get(uid, pad) if o.draft_read_slot[i] and driver.config.num_draft else pad
        rows.append(FeedRow(list(driver.follower.requests[uid].history), drafts, bool(o.remap[i] >= 0)))
    return rows


def ngram_config(num_draft, **more):
    return small_config(
        depth=2, num_draft=num_draft, ngram=4, ngram_table=ngram_table(), ngram_pad=2, num_blocks=40, **more
    )


@pytest.mark.parametrize("num_draft", [0, 1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_completed_windows_equal_those_of_the_true_history(num_draft, seed):
    driver = Driver(ngram_config(num_draft))
    g = geometry(driver.config)
    rng = np.random.default_rng(seed)
    for _ in range(6):
        driver.submit(rng.integers(0, VOCAB, rng.integers(1, 20)).tolist(), max_tokens=int(rng.integers(2, 15)))
    checked = 0
    while driver.core.unfinished:
        o = driver.schedule()
        if not o.num_reqs:
            while driver.open:
                driver.retire()
            driver.poll()
            continue
        record = driver.core.pack(o.step_id)
        is_mapped = o.kind == StepKind.DECODE and (o.remap >= 0).any()
        require((record.fresh_ids is not None) == bool(is_mapped), "fresh_ids of step", o.step_id)
        if not is_mapped:
            while len(driver.open) > (o.kind == StepKind.DECODE):
                driver.retire()
            continue
        rows = feed_rows(driver, o)
        for name, want in pack_feed(rows, g).items():
            np.testing.assert_array_equal(getattr(record, name), want, err_msg=name)
        record.validate(driver.core.limits, 2, step=o)
        win = record.ngram_win.tolist()
        before = [len(r.tokens) for r in rows]
        driver.retire()  # the step in flight: now its tokens are known
        for i, uid in enumerate(o.seq_uid.tolist()):
            request = driver.follower.requests[uid]
            if request.reason:
                continue  # an over-run row: nobody reads it
            history = list(request.history)
            drafts = driver.drafts[uid] if num_draft else []
            rejected = num_draft
            if rows[i].is_mapped:
                rejected -= len(history) - before[i] - 1
            got = complete_window(win[i], [history[-1], *drafts], rejected, g)
            line = Row([*history, *drafts], len(history) - 1, num_draft + 1)
            require(got == [ngram_window(line, p, g) for p in range(line.start, line.end)], "windows of", uid)
            checked += 1
    assert checked > 10


@pytest.mark.parametrize("num_draft", [0, 2])
def test_pack_after_the_commit_of_the_step_before_is_refused_where_drafts_are_lost(num_draft):
    driver = Driver(ngram_config(num_draft))
    driver.submit([1, 2, 3], max_tokens=30, min_tokens=20)
    while not driver.open:
        driver.step()
    o = driver.core.schedule_local()
    assert o.remap.tolist() == [0]
    before = driver.core.pack(o.step_id).ngram_win.copy()
    driver.commit()
    if num_draft:
        with pytest.raises(OrderError, match="pack it before"):
            driver.core.pack(o.step_id)
    else:
        np.testing.assert_array_equal(driver.core.pack(o.step_id).ngram_win, before)


def test_depth_one_sends_no_feed_fields():
    driver = Driver(small_config(num_draft=2, ngram=3, ngram_table=ngram_table()))
    driver.submit([1, 2, 3], max_tokens=6)
    while driver.core.unfinished:
        o = driver.schedule()
        if o.num_reqs:
            record = driver.core.pack(o.step_id)
            assert record.fresh_ids is None
            assert record.ngram_win is None
            driver.retire()
        driver.poll()
