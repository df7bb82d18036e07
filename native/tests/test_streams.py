"""Token streams: the same for every depth, draft length, chunk size, pool size and row order."""

import numpy as np
import pytest
from native_driver import EOS, VOCAB, Driver, expected_output, small_config

from deepinfer_contracts import FinishReason, StepKind


def submit_many(driver, count=9, seed=0, longest=40, max_tokens=20):
    rng = np.random.default_rng(seed)
    return [
        driver.submit(
            rng.integers(0, VOCAB, rng.integers(1, longest)).tolist(),
            max_tokens=int(rng.integers(1, max_tokens)),
            min_tokens=int(rng.integers(0, 4)),
        )
        for _ in range(count)
    ]


CASES = {
    "plain": {},
    "pipelined": {"depth": 2},
    "drafts": {"num_draft": 3},
    "pipelined_drafts": {"num_draft": 2, "depth": 2},
    "chunks": {"max_chunk": 5, "min_chunk": 2},
    "single_token_chunks": {"max_chunk": 1},
    "small_pool": {"num_blocks": 18},
    "small_pool_pipelined": {"num_blocks": 18, "depth": 2},
    "small_pool_drafts": {"num_blocks": 18, "num_draft": 2, "depth": 2},
    "stream_ordered": {"num_blocks": 18, "depth": 2, "stream_ordered_reuse": True},
    "by_length": {"row_order": "length_desc", "depth": 2},
    "large_blocks": {"block_size": 32, "num_blocks": 9},
    "common_inputs": {"inputs": "InputMetadata", "ngram": 3, "ngram_table": np.arange(VOCAB, dtype=np.int32)},
    "no_pools": {"num_swa_slots": 0, "num_state_slots": 0, "window": 0},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_streams_of_any_configuration_equal_the_undisturbed_run(case, seed):
    driver = Driver(small_config(**CASES[case]))
    submit_many(driver, seed=seed)
    driver.run(check=True)
    driver.require_expected()


def test_small_pool_really_preempts():
    driver = Driver(small_config(num_blocks=18))
    submit_many(driver, max_tokens=30)
    driver.run()
    driver.require_expected()
    assert driver.core.stats().preemptions > 0


def test_pipelined_small_pool_holds_before_it_preempts():
    driver = Driver(small_config(num_blocks=20, depth=2))
    for _ in range(4):
        submit_many(driver, seed=3, longest=24, max_tokens=30)
    driver.run()
    driver.require_expected()
    assert driver.core.stats().holds > 0


def test_drafts_are_accepted_and_counted():
    driver = Driver(small_config(num_draft=3))
    submit_many(driver, seed=5, max_tokens=30)
    driver.run()
    stats = driver.core.stats()
    assert stats.tokens_accepted > 0
    assert stats.tokens_drafted > stats.tokens_accepted


def test_overrun_rows_change_nothing_and_are_counted():
    driver = Driver(small_config(depth=2))
    requests = submit_many(driver, count=20, seed=2, max_tokens=30)
    driver.run()
    driver.require_expected()
    stopped = sum(r.reason == FinishReason.STOP and len(r.output) > 1 for r in requests)
    assert stopped > 0
    assert 0 < driver.core.stats().overrun_rows <= stopped


def test_request_that_must_hit_max_tokens_is_never_overrun():
    driver = Driver(small_config(depth=2))
    for n in range(1, 6):
        driver.submit([n, n + 1, n + 2], max_tokens=n, stop=())
    driver.run()
    assert driver.core.stats().overrun_rows == 0


def test_request_that_must_hit_model_length_is_never_overrun():
    driver = Driver(small_config(depth=2, max_model_len=16))
    request = driver.submit(list(range(12)), max_tokens=50, stop=())
    driver.run()
    assert request.reason == FinishReason.LENGTH
    assert len(request.history) == 17
    assert driver.core.stats().overrun_rows == 0


def test_prompt_of_the_model_length_gives_one_token():
    driver = Driver(small_config(max_model_len=16))
    request = driver.submit(list(range(16)), max_tokens=50, stop=())
    driver.run()
    assert (len(request.output), request.reason) == (1, FinishReason.LENGTH)


def test_stop_id_wins_over_max_tokens_on_the_same_token():
    prompt = next(p for p in ([a, b] for a in range(VOCAB) for b in range(VOCAB)) if expected_first(p) == EOS)
    driver = Driver(small_config())
    request = driver.submit(prompt, max_tokens=1)
    driver.run()
    assert request.reason == FinishReason.STOP


def expected_first(prompt):
    from native_driver import next_token

    return next_token(prompt)


def test_sampled_stop_id_before_min_tokens_does_not_stop():
    driver = Driver(small_config())
    request = driver.submit([1, 2, 3], max_tokens=6, min_tokens=3)
    request.min_tokens = 0  # this sampler ignores eos_suppress
    driver.sample_plain = driver.sample

    def sample_eos(kind, rows):
        out = driver.sample_plain(kind, rows)
        out.sampled_ids[:] = EOS
        return out

    driver.sample = sample_eos
    driver.run()
    assert (request.output, request.reason) == ([EOS] * 4, FinishReason.STOP)


def test_ignored_eos_does_not_stop():
    driver = Driver(small_config())
    request = driver.submit([1, 2, 3], max_tokens=5, ignore_eos=True)
    driver.sample_plain = driver.sample

    def sample_eos(kind, rows):
        out = driver.sample_plain(kind, rows)
        out.sampled_ids[:] = EOS
        return out

    driver.sample = sample_eos
    driver.run()
    assert (request.output, request.reason) == ([EOS] * 5, FinishReason.LENGTH)


def test_tokens_after_the_first_stop_of_a_step_are_dropped():
    driver = Driver(small_config(num_draft=3), good_drafts=3)
    requests = [driver.submit([n, 2, 3], max_tokens=2, stop=()) for n in range(8)]
    driver.run()
    assert all(len(r.output) == 2 for r in requests)


def test_bad_row_status_ends_only_that_request():
    driver = Driver(small_config())
    bad, good = driver.submit([1, 2, 3], max_tokens=6, stop=()), driver.submit([4, 5, 6], max_tokens=6, stop=())
    driver.sample_plain = driver.sample

    def sample_nan(kind, rows):
        out = driver.sample_plain(kind, rows)
        for i, row in enumerate(rows):
            if row[0] == bad.uid and len(bad.output) == 2:
                out.row_status[i], out.sampled_ids[i] = 1, -1
        return out

    driver.sample = sample_nan
    driver.run()
    assert (bad.reason, len(bad.output), bad.final_index) == (FinishReason.ENGINE, 2, 2)
    driver.require_expected([good])


@pytest.mark.parametrize(
    ("max_tokens", "reason", "length"),
    [(9, FinishReason.ENGINE, 4), (4, FinishReason.LENGTH, 4), (3, FinishReason.LENGTH, 3)],
)
@pytest.mark.parametrize("depth", [1, 2])
def test_drafts_before_a_failed_row_hold_and_may_end_the_request(depth, max_tokens, reason, length):
    """One token of the prompt's end, three accepted drafts, and then a row without a token."""
    driver = Driver(small_config(depth=depth, num_draft=3), good_drafts=3)
    bad, good = (
        driver.submit([1, 2, 3, 4, 5], max_tokens=max_tokens, stop=()),
        driver.submit([4, 5], max_tokens=9, stop=()),
    )
    driver.sample_plain = driver.sample

    def sample_nan(kind, rows):
        out = driver.sample_plain(kind, rows)
        for i, row in enumerate(rows):
            if row[0] == bad.uid and len(bad.output) == 1:
                out.row_status[i] = 1
        return out

    driver.sample = sample_nan
    driver.run()
    assert (bad.reason, len(bad.output)) == (reason, length)
    assert bad.final_index == (length if reason == FinishReason.ENGINE else -1)  # of an end without a token
    assert bad.output == expected_output(bad, 64)[0][:length]
    driver.require_expected([good])
    driver.core.audit()


def test_finish_drops_later_tokens():
    driver = Driver(small_config(depth=2))
    request = driver.submit([1, 2, 3], max_tokens=20, stop=())
    while len(request.output) < 4:
        driver.step()
    driver.core.finish(request.uid, FinishReason.STOP, 3)
    driver.run()
    assert (request.reason, request.final_index) == (FinishReason.STOP, 3)


def test_stop_preempted_ends_with_no_resource():
    driver = Driver(small_config(num_blocks=18, stop_preempted=True))
    requests = [driver.submit([n] * 14, max_tokens=30, stop=()) for n in range(4)]
    driver.run()
    reasons = [r.reason for r in requests]
    assert FinishReason.NO_RESOURCE in reasons
    assert FinishReason.LENGTH in reasons


def test_sequence_that_outgrows_the_whole_pool_ends():
    driver = Driver(small_config(num_blocks=6))
    request = driver.submit([1] * 10, max_tokens=60, stop=())
    driver.run()
    assert request.reason == FinishReason.TOO_LONG
    assert len(request.history) == 21


def test_chunks_cover_the_prompt_once_and_in_order():
    driver = Driver(small_config(max_chunk=6, chunk_align=4))
    request = driver.submit(list(range(40)), max_tokens=2, stop=())
    driver.run()
    chunks = [q for _, kind, rows in driver.steps if kind == StepKind.PREFILL for uid, q in rows if uid == request.uid]
    assert chunks == [4] * 10


def test_unaligned_chunk_is_kept_when_aligning_would_empty_it():
    driver = Driver(small_config(max_chunk=3, chunk_align=4))
    driver.submit(list(range(10)), max_tokens=1, stop=())
    driver.run()
    assert [rows[0][1] for _, _, rows in driver.steps] == [3, 3, 3, 1]
