"""Boundary checks leave out what passed and was not written since; nothing else, and nothing at level full."""

import numpy as np
import pytest
from native_driver import VOCAB, Driver, small_config

from deepinfer_contracts import CONTRACTS
from deepinfer_native.errors import ContractError, InternalError
from deepinfer_native.library import ffi, lib

BOUNDARY, FULL = 1, 2
EVENTS = [name for name, _ in CONTRACTS["EventBatch"].fields]


def fresh(**changes):
    return Driver(small_config(validation="boundary", **changes))


def check(driver, level, kept):
    """The field that a check of the newest batch names, with those columns kept."""
    limits, error = ffi.new("di_limits *"), ffi.new("di_error *")
    limits.vocab_size = VOCAB
    limits.num_draft = driver.config.num_draft
    bits = sum(1 << EVENTS.index(name) for name in kept)
    code = lib.di_check_event_batch_kept(driver.core._events.batch, limits, level, bits, error)
    return EVENTS[error.field] if code else ""


@pytest.mark.parametrize(
    ("column", "damage"), [("draft_logprob", 1.0), ("top_count", -3), ("finish_reason", 99), ("seq_uid", 0)]
)
def test_check_leaves_out_kept_columns_only_at_boundary(column, damage):
    driver = fresh()
    driver.submit([1, 2, 3], max_tokens=20, stop=())
    driver.step()
    driver.step()
    arena = driver.core._events._arenas[driver.core._events.info.arena]
    arena.whole[column][0] = damage
    assert check(driver, BOUNDARY, []) == column
    assert check(driver, BOUNDARY, [name for name in EVENTS[2:] if name != column]) == column
    assert check(driver, BOUNDARY, EVENTS[2:]) == ""
    assert check(driver, FULL, EVENTS[2:]) == column


def test_event_columns_are_checked_where_a_batch_is_longer_than_those_before():
    driver = fresh()
    driver.submit([1, 2, 3], max_tokens=60, stop=())
    for _ in range(8):
        driver.step()
    for arena in driver.core._events._arenas.values():
        arena.whole["draft_logprob"][2] = 1.0  # never part of a batch yet
    for _ in range(4):
        driver.step()  # still not
    for i in range(3):
        driver.submit([4 + i], max_tokens=60, stop=())
    with pytest.raises(InternalError, match="draft_logprob"):
        driver.run()


def test_rows_are_checked_again_when_one_is_placed():
    driver = fresh()
    driver.submit([1, 2, 3], max_tokens=60, stop=())
    for _ in range(8):
        record = driver.step()
    record.row_slot[0] = 99
    driver.submit([4], max_tokens=60, stop=())
    with pytest.raises(InternalError, match="row_slot"):
        driver.run()


class Damager(Driver):
    """A sampler that returns one wrong value when it is told to."""

    damage: tuple[str, int, float] | None = None

    def sample(self, kind, rows):
        out = super().sample(kind, rows)
        if out.verified_ids is not None:
            out.verified_logprob = np.zeros(len(out.verified_ids), np.float32)
            out.confidence = np.ones(out.draft_ids.shape, np.float32)
        if self.damage is not None:
            field, at, value = self.damage
            getattr(out, field).reshape(-1)[at] = value
        return out


# What the core does not check twice, because it has read or copies it: a wrong value has to be noticed there.
@pytest.mark.parametrize("bad_row", [False, True])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sampled_ids", VOCAB),
        ("sampled_ids", -2),
        ("row_status", 3),
        ("row_status", -1),
        ("verified_ids", VOCAB),
        ("verified_ids", -2),
        ("draft_ids", VOCAB),
        ("draft_ids", -2),
        ("sampled_logprob", 0.5),
        ("verified_logprob", 0.5),
        ("confidence", 1.5),
        ("confidence", np.nan),
    ],
)
def test_wrong_values_of_a_sampler_are_refused(field, value, bad_row):
    driver = Damager(small_config(validation="boundary", num_draft=3))
    for i in range(4):
        driver.submit([1 + i, 2, 3], max_tokens=60, stop=())
    for _ in range(3):
        driver.step()
    driver.schedule()
    at = 2 * {"verified_ids": 4, "verified_logprob": 4, "draft_ids": 3, "confidence": 3}.get(field, 1)
    driver.damage = field, at + (3 if field == "verified_ids" and value == -2 else 0), value
    if bad_row:
        plain = driver.sample
        driver.sample = lambda kind, rows: failed(plain(kind, rows))
    with pytest.raises(ContractError) as refused:
        driver.commit()
    assert refused.value.field in (field, "sampled_ids")


def failed(output):
    """The first row has no token: the core looks at every row then."""
    output.row_status[0], output.sampled_ids[0] = 1, -1
    return output


CASES = {
    "plain": {},
    "pipelined": {"depth": 2},
    "pipelined_drafts": {"num_draft": 3, "depth": 2},
    "small_pool": {"num_blocks": 18, "depth": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_records_of_boundary_cores_pass_full_checks(case):
    rng = np.random.default_rng(3)
    driver = fresh(**CASES[case])
    for i in range(25):
        prompt = rng.integers(0, VOCAB, rng.integers(1, 30)).tolist()
        request = driver.submit(prompt, max_tokens=int(rng.integers(1, 20)), stop=(5, 6) if i % 2 else ())
        if rng.random() < 0.2:
            driver.core.abort([request.uid])
        for _ in range(int(rng.integers(0, 5))):
            record = driver.schedule()
            record.validate(driver.core.limits, FULL)
            while driver.open and (len(driver.open) >= driver.config.depth or not record.num_reqs):
                step = driver.open[0][0]
                driver.commit().validate(driver.core.limits, FULL)
                driver.done(step)
    driver.run(check=True)
