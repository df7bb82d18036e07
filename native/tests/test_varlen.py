"""Variable verification lengths in the core: decisions, corrections of the device, and the same tokens for any lengths
(``spec/engine.md`` 7, invariants 32 to 35)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_driver import VOCAB, require, small_config
from varlen_driver import MS, SIZES, K, VarlenDriver, confidences_of, varlen_config

from deepinfer_contracts import StepKind
from deepinfer_native import Core
from deepinfer_native import reference_verify as reference
from deepinfer_native.errors import ArgumentError, ConfigurationError, OrderError
from deepinfer_native.verify import cumulative

FIXED = settings(derandomize=True, deadline=None, max_examples=20)


def busy(driver, n=6, seed=1, tokens=18):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        prompt = rng.integers(0, VOCAB, int(rng.integers(1, 20))).tolist()
        driver.submit(prompt, max_tokens=int(rng.integers(1, tokens)))
    return driver


# --- the same tokens, whatever is verified -----------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("how", ["random", "ties", "ones", "zeros"])
def test_tokens_do_not_depend_on_the_lengths(depth, how):
    driver = busy(VarlenDriver(varlen_config(depth=depth), how)).run(check=True)
    driver.require_expected()
    lengths = {q for _, lengths, _, kind in driver.records if kind == StepKind.DECODE for q in lengths.tolist()}
    assert len(lengths) > (how == "random")


@given(st.data(), st.integers(1, 2), st.booleans())
@FIXED
def test_tokens_do_not_depend_on_arbitrary_corrections(data, depth, pressure):
    driver = busy(VarlenDriver(varlen_config(depth=depth, num_blocks=40 if pressure else 120)), tokens=30)

    def correct(o):
        if o.kind != StepKind.DECODE:
            return
        spare = int(o.num_batched_tokens) - o.num_reqs
        lengths = np.ones(o.num_reqs, np.int32)
        for i in data.draw(st.permutations(range(o.num_reqs))):
            lengths[i] += min(K, spare)
            spare -= min(K, spare)
        driver.put_lengths(o, lengths)

    driver.correct = correct
    driver.run(check=True)
    driver.require_expected()


def test_corrected_lengths_are_those_of_the_device_in_the_packed_step():
    driver = busy(VarlenDriver(varlen_config(depth=2)))
    changed = 0
    for _ in range(60):
        o = driver.step()
        if o.num_reqs and o.kind == StepKind.DECODE and driver.open:
            changed += [r[2] for r in driver.open[-1][2]] != o.seqlens_q.tolist()
    assert changed > 0


# --- what the host decides ---------------------------------------------------------------------------------------


class Ledger:
    """What the host may know: the confidences of each request by the commits that brought them."""

    def __init__(self):
        self.rounds = {}
        self.lives = {}  # uid -> preemptions

    def note(self, driver, committed):
        """Commits of (uid, generation, confidences); those of an earlier life are discarded."""
        for uid, generation, row in committed:
            if not driver.follower.requests[uid].reason and generation == self.lives.get(uid, 0):
                self.rounds.setdefault(uid, []).append(row.copy())

    def forget(self, uids):
        for uid in uids:
            self.rounds.pop(uid, None)
            self.lives[uid] = self.lives.get(uid, 0) + 1

    def expected(self, o):
        """(tokens, lengths) of a decode step."""
        n = o.num_reqs
        budget, share = np.zeros((n, K), np.float32), np.zeros((n, K), np.float32)
        has_mapped = (o.remap >= 0).any()
        for i, uid in enumerate(o.seq_uid.tolist()):
            known = [cumulative(r)[0] for r in self.rounds.get(uid, [])]
            newest = known[-1] if known else np.ones(K, np.float32)
            if o.remap[i] >= 0:
                budget[i] = share[i] = newest
            elif not has_mapped:
                share[i] = newest
                budget[i] = known[-2] if len(known) > 1 else 1
        total = reference.total(budget, SIZES, MS)
        return total, reference.lengths(share, total)


# Where a pool has as many rows as requests, a preempted request gets the row again that it had.
POOLS = {"ample": {}, "few_blocks": {"num_blocks": 34}, "two_rows": {"num_blocks": 14, "max_num_seqs": 2}}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("how", ["random", "ties"])
def test_schedule_decides_by_the_round_before_and_shares_by_the_newest(depth, how, pool):
    driver = busy(VarlenDriver(varlen_config(depth=depth, **POOLS[pool]), how), n=14, tokens=40)
    ledger = Ledger()
    commit, schedule = driver.commit, driver.schedule
    decided, mixed = [], 0

    def noted():
        _, kind, rows = driver.open[0]
        ended = {r[0] for r in rows if driver.follower.requests[r[0]].reason}
        batch = commit()
        ledger.note(
            driver,
            [
                (r[0], r[1], driver.last_confidence[i])
                for i, r in enumerate(rows)
                if (r[3] or kind == StepKind.DECODE) and r[0] not in ended
            ],
        )
        return batch

    def compared(mode=None):
        nonlocal mixed
        o = schedule(mode)
        ledger.forget(o.preempted_uid.tolist())
        if o.num_reqs and o.kind == StepKind.DECODE:
            total, lengths = ledger.expected(o)
            require(o.num_batched_tokens == total, "tokens", o.num_batched_tokens, total, o.remap.tolist())
            require(o.seqlens_q.tolist() == lengths, "lengths", o.seqlens_q.tolist(), lengths)
            decided.append(total / o.num_reqs)
            mixed += bool((o.remap >= 0).any() and (o.remap < 0).any())
        return o

    driver.commit, driver.schedule = noted, compared
    driver.run()
    driver.require_expected()
    assert 1 < np.mean(decided) < K + 1
    if pool != "ample":
        assert driver.core.stats().preemptions > 0
    if pool == "few_blocks":
        # A request that was held does not continue the step in flight, and the others do.
        assert (mixed > 0) == (depth == 2)


def test_without_a_curve_every_draft_is_verified():
    driver = busy(VarlenDriver(varlen_config(depth=2), "zeros", curve=None)).run()
    assert {q for _, q, _, kind in driver.records if kind == StepKind.DECODE for q in q.tolist()} == {K + 1}
    driver.require_expected()


def test_an_empty_curve_ends_variable_lengths():
    driver = busy(VarlenDriver(varlen_config(), "zeros"))
    driver.core.set_verify_curve([], [])
    driver.run()
    assert {q for _, q, _, kind in driver.records if kind == StepKind.DECODE for q in q.tolist()} == {K + 1}


def test_a_request_without_drafts_verifies_none():
    driver = VarlenDriver(varlen_config())
    driver.submit([1, 2, 3], max_tokens=6)
    sample = VarlenDriver.sample

    def without(kind, rows):
        out = sample(driver, kind, rows)
        out.draft_ids[:] = -1
        return out

    driver.sample = without
    driver.step()
    driver.drafts.clear()
    assert driver.schedule().seqlens_q.tolist() == [1]


def test_drafts_without_confidences_count_as_certain():
    driver = VarlenDriver(varlen_config())
    driver.submit([1, 2, 3], max_tokens=6)
    sample = VarlenDriver.sample

    def without(kind, rows):
        out = sample(driver, kind, rows)
        out.confidence = None
        return out

    driver.sample = without
    driver.step()
    assert driver.schedule().seqlens_q.tolist() == [K + 1]


def test_preempted_requests_start_with_nothing_known():
    driver = busy(VarlenDriver(varlen_config(depth=2, num_blocks=30), "ties"), n=8, tokens=40).run(check=True)
    assert driver.core.stats().preemptions > 0
    driver.require_expected()


# --- corrections of lengths --------------------------------------------------------------------------------------


def launched(depth=2):
    """A driver with a decode step in flight behind another one, neither sampled yet, and the newest record."""
    driver = busy(VarlenDriver(varlen_config(depth=depth), "ones"), tokens=30)
    for _ in range(12):
        driver.step()
    o = driver.schedule()
    require(o.kind == StepKind.DECODE and o.num_reqs > 1, "no decode step")
    return driver, o


def test_correct_with_wrong_lengths_changes_nothing():
    driver, o = launched()
    q = o.seqlens_q.astype(np.int32)
    n = o.num_reqs
    refused = [q[:-1], q + 1, np.zeros(n, np.int32), np.r_[q[0] + 1, q[1:]].astype(np.int32)]
    worse = q.copy()
    worse[0], worse[1] = K + 2, q[0] + q[1] - K - 2
    for lengths in [*refused, worse]:
        with pytest.raises(ArgumentError) as error:
            driver.core.correct(o.step_id, lengths)
        assert error.value.field == "seqlens_q"
    for lengths in (q.astype(np.int64), q[None], q.astype(np.float32)):
        with pytest.raises(ArgumentError):
            driver.core.correct(o.step_id, lengths)
    driver.retire()
    assert driver.core.pack_sampler(o.step_id).row_count.tolist() == q.tolist()


def test_correct_of_another_step_is_refused():
    driver, o = launched()
    for step in (0, o.step_id - 1, o.step_id + 1):
        with pytest.raises(OrderError):
            driver.core.correct(step, o.seqlens_q)


def test_correct_after_the_sampler_inputs_is_refused():
    driver, o = launched()
    driver.retire()
    driver.core.pack_sampler(o.step_id)
    with pytest.raises(OrderError):
        driver.core.correct(o.step_id, o.seqlens_q)


def test_correct_of_a_prefill_step_is_refused():
    driver = busy(VarlenDriver(varlen_config()))
    o = driver.schedule()
    with pytest.raises(OrderError):
        driver.core.correct(o.step_id, o.seqlens_q)


@pytest.mark.parametrize("config", [small_config(num_draft=3), varlen_config(num_draft=0)], ids=["fixed", "no drafts"])
def test_a_core_with_fixed_lengths_takes_no_curve(config):
    core = Core(config)
    for call in (lambda: core.set_verify_curve([32], [1.0]), lambda: core.correct(1, np.ones(1, np.int32))):
        with pytest.raises(ArgumentError) as refused:
            call()
        assert refused.value.field == "verify_lengths"


def test_a_curve_that_does_not_reach_the_largest_step_is_refused():
    core = Core(varlen_config())
    with pytest.raises(ArgumentError, match="the largest step has 32 tokens"):
        core.set_verify_curve([8, 31], [1.0, 2.0])


def test_a_curve_of_more_sizes_than_a_core_keeps_is_refused():
    core = Core(varlen_config())
    core.set_verify_curve(list(range(1, 4097)), [1.0] * 4096)
    with pytest.raises(ArgumentError, match="4097 graph sizes, at most 4096"):
        core.set_verify_curve(list(range(1, 4098)), [1.0] * 4097)


def test_config_with_unknown_lengths_names_the_field():
    with pytest.raises(ConfigurationError) as refused:
        varlen_config(verify_lengths="some")
    assert refused.value.field == "verify_lengths"


# --- corrections of the curve ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [9, 10, 40, 5200])
def test_observed_times_move_the_decision_as_the_reference_does(count):
    """Nothing shows slope and sampler time but what is decided, so the decision is compared for many curves."""
    rng = np.random.default_rng(count)
    sizes = list(SIZES)
    for attempt in range(3 if count > 1000 else 12):
        ms = np.cumsum(rng.random(len(sizes)) + 0.05).tolist()
        driver = VarlenDriver(varlen_config(), "random", curve=(sizes, ms))
        corrections = reference.Corrections(sizes, ms)
        for _ in range(count):
            size = int(rng.integers(0, 4 if count > 40 else 2))
            sample = (sizes[size], int(rng.integers(1, 4)), ms[size] * rng.uniform(0.8, 3), rng.uniform(0, 4))
            driver.core.observe_verify(*sample)
            corrections.observe(*sample)
        n = 1 + attempt % 3
        for i in range(n):
            driver.submit([1 + i, 2, 3], max_tokens=6, stop=())
        driver.step()
        o = driver.schedule(None)
        share = [cumulative(confidences_of(uid, 4, "random"))[0] for uid in o.seq_uid.tolist()]
        # One round is known: the budget counts drafts whose round before had no values as certain.
        total = reference.total(np.ones((n, K), np.float32), sizes, ms, corrections.slope, corrections.sampler_ms(n))
        require(o.num_batched_tokens == total, count, attempt, o.num_batched_tokens, total)
        require(o.seqlens_q.tolist() == reference.lengths(np.array(share), total), "lengths")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((3, 1, 1.0, 1.0), "graph"),
        ((4, 0, 1.0, 1.0), "num_reqs"),
        ((4, 9, 1.0, 1.0), "num_reqs"),
        ((4, 1, float("nan"), 1.0), "forward_ms"),
        ((4, 1, 1.0, -1.0), "sampler_ms"),
        ((4, 1, "slow", 1.0), "timing"),
    ],
)
def test_observe_verify_with_a_wrong_value_names_it(arguments, field):
    driver = VarlenDriver(varlen_config())
    with pytest.raises(ArgumentError) as refused:
        driver.core.observe_verify(*arguments)
    assert refused.value.field == field


def test_observe_verify_without_a_curve_is_refused():
    with pytest.raises(OrderError):
        VarlenDriver(varlen_config(), curve=None).core.observe_verify(4, 1, 1.0, 1.0)
