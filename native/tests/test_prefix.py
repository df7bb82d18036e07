"""The prefix cache: what hits, what runs again, what is offered, and that nothing changes (engine.md 2.10, 3.5)."""

import random

import pytest
from native_driver import VOCAB, Driver, require, small_config

from deepinfer_contracts import FinishReason, StepFlags, StepKind, StepMode


def prefix_config(**changes):
    return small_config(**{"prefix_cache": True, "prefix_key": bytes(16), **changes})


def prompt_of(n, seed=0):
    r = random.Random(seed)
    return [r.randrange(VOCAB) for _ in range(n)]


def first_chunks(driver, request):
    """(hit, replayed, valid start, flags) of the row that admits a request, run to its end."""
    seen = []
    while request.reason == FinishReason.NONE:
        o = driver.step()
        uids = o.seq_uid.tolist()
        if request.uid in uids and o.kind == StepKind.PREFILL:
            i = uids.index(request.uid)
            seen.append((*(int(x[i]) for x in (o.hit_tokens, o.replayed_tokens, o.swa_valid_start)), int(o.flags)))
    return seen


def test_repeated_prompt_skips_all_but_the_replay():
    driver = Driver(prefix_config())
    driver.submit(prompt_of(30), max_tokens=3, stop=())
    driver.run()
    again = driver.submit(prompt_of(30), max_tokens=3, stop=())
    # H = 28: the last whole block that leaves a token to run. The window of 8 runs again.
    assert first_chunks(driver, again) == [(20, 8, 20, int(StepFlags.HAS_REPLAY))]
    driver.run()
    driver.require_expected()
    stats = driver.core.stats()
    assert (stats.prefix_queries, stats.prefix_hit_tokens, stats.prefix_replayed_tokens) == (2, 20, 8)
    assert stats.tokens_prefill == 30 + 10


def test_chunks_of_a_replay_keep_its_start_and_report_once():
    driver = Driver(prefix_config(max_chunk=3, chunk_align=1))
    driver.submit(prompt_of(30), max_tokens=1, stop=())
    driver.run()
    again = driver.submit(prompt_of(30), max_tokens=1, stop=())
    replay = int(StepFlags.HAS_REPLAY)
    assert first_chunks(driver, again) == [(20, 8, 20, replay), (0, 0, 20, replay), (0, 0, 20, replay), (0, 0, 20, 0)]
    driver.run()
    driver.require_expected()


@pytest.mark.parametrize("shared", [7, 8, 9, 12, 24])
@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_shared_prefix_replays_the_window_and_nothing_else(shared, chunk):
    driver = Driver(prefix_config(max_chunk=chunk, chunk_align=1))
    driver.submit(prompt_of(shared) + prompt_of(9, 1), max_tokens=4, stop=())
    driver.run()
    again = driver.submit(prompt_of(shared) + prompt_of(9, 2), max_tokens=4, stop=())
    start = max(0, shared // 4 * 4 - 8)
    first = first_chunks(driver, again)[0]
    assert first[:3] == ((start, 8, start) if start else (0, 0, 0))
    driver.run()
    driver.require_expected()
    assert driver.core.stats().prefix_hit_tokens == start


def test_hit_of_the_window_or_less_holds_no_shared_block():
    driver = Driver(prefix_config())
    driver.submit(prompt_of(9), max_tokens=1, stop=())
    driver.run()
    before = driver.core.stats()
    driver.submit(prompt_of(9), max_tokens=1, stop=())
    driver.schedule()
    after = driver.core.stats()
    assert (after.main.cached, after.main.held) == (before.main.cached, 3)
    assert after.prefix_hit_tokens == 0


@pytest.mark.parametrize("block_size", [1, 2, 4, 8, 32])
@pytest.mark.parametrize("depth", [1, 2])
def test_long_prompt_hits_with_every_block_size(block_size, depth):
    ratios = {"ratios_sparse": (1,), "ratios_dense": ()} if block_size == 1 else {}
    config = prefix_config(
        block_size=block_size, num_blocks=1 + 512 // block_size, max_model_len=128, depth=depth, num_draft=2, **ratios
    )
    driver = Driver(config)
    outputs = []
    for _ in range(3):
        outputs.append(driver.submit(prompt_of(100), max_tokens=9, stop=()))
        driver.run(check=True)
    driver.require_expected()
    hit = 99 // block_size * block_size - 8
    assert driver.core.stats().prefix_hit_tokens == 2 * hit > 0
    assert outputs[0].output == outputs[1].output == outputs[2].output


def test_last_rows_of_the_decoder_half_run_again():
    driver = Driver(prefix_config(replay_mode="compact", replay_keep=20))
    for _ in range(2):
        request = driver.submit(prompt_of(30), max_tokens=2, stop=())
        chunks = first_chunks(driver, request)
    assert chunks[0][:3] == (10, 18, 10)
    driver.run()
    driver.require_expected()


@pytest.mark.parametrize("bits", [0, 1, 128])
def test_equal_hashes_do_not_make_equal_prompts(bits):
    driver = Driver(prefix_config(prefix_hash_bits=bits, num_blocks=40))
    tail = prompt_of(12, 9)
    for seed in (1, 2, 1, 2, 3):
        driver.submit(prompt_of(16, seed) + tail, max_tokens=4, stop=())
        driver.run(check=True)
    driver.require_expected()
    # 28 tokens, H = 24, start = 16: only the two repeated prompts hit, although all blocks of the tail are equal.
    assert driver.core.stats().prefix_hit_tokens == 2 * 16


def test_equal_block_behind_another_parent_is_no_hit():
    driver = Driver(prefix_config(prefix_hash_bits=0))
    same = prompt_of(16, 5)
    driver.submit(prompt_of(4, 1) + same, max_tokens=1, stop=())
    driver.submit(prompt_of(4, 2), max_tokens=2, stop=())
    driver.run()
    driver.submit(prompt_of(4, 2) + same, max_tokens=4, stop=())
    driver.run(check=True)
    driver.require_expected()
    assert driver.core.stats().prefix_hit_tokens == 0


def test_evicted_block_leaves_the_index():
    driver = Driver(prefix_config(num_blocks=7))
    first = driver.submit(prompt_of(20), max_tokens=3, stop=())
    driver.run(check=True)
    for seed in (1, 2):
        driver.submit(prompt_of(20, seed), max_tokens=3, stop=())
        driver.run(check=True)
    again = driver.submit(prompt_of(20), max_tokens=3, stop=())
    driver.run(check=True)
    driver.require_expected()
    assert again.output == first.output
    stats = driver.core.stats()
    assert (stats.prefix_hit_tokens, stats.prefix_evictions > 0) == (0, True)


def test_least_recently_used_prefix_goes_first():
    driver = Driver(prefix_config(num_blocks=15))
    for seed in (0, 1, 0):
        driver.submit(prompt_of(20, seed), max_tokens=1, stop=())
        driver.run()
    driver.submit(prompt_of(22, 2), max_tokens=1, stop=())  # takes what is free and evicts
    driver.run()
    before = driver.core.stats().prefix_hit_tokens
    driver.submit(prompt_of(20, 0), max_tokens=1, stop=())
    driver.run()
    assert driver.core.stats().prefix_hit_tokens == before + 8
    driver.require_expected()


@pytest.mark.parametrize("cancel", [False, True])
def test_prompt_in_its_first_chunk_is_no_hit_yet(cancel):
    driver = Driver(prefix_config(depth=2, max_chunk=12))
    first = driver.submit(prompt_of(30), max_tokens=3, stop=())
    driver.schedule(StepMode.TRY_PREFILL)
    second = driver.submit(prompt_of(30), max_tokens=3, stop=(), priority=-1)
    o = driver.schedule(StepMode.TRY_PREFILL)
    assert (o.seq_uid.tolist(), o.hit_tokens.tolist()) == ([second.uid], [0])
    if cancel:
        driver.core.abort([first.uid])
    while driver.open:
        driver.retire()
    driver.run(check=True)
    driver.require_expected([second] if cancel else None)


@pytest.mark.parametrize("num_draft", [0, 3])
@pytest.mark.parametrize("depth", [1, 2])
def test_only_blocks_of_computed_tokens_are_offered(num_draft, depth):
    driver = Driver(prefix_config(num_draft=num_draft, depth=depth))
    for n in range(1, 12):
        before = driver.core.stats().main.cached
        request = driver.submit(prompt_of(9, 100 + n), max_tokens=n, stop=())
        driver.run(check=True)
        # The last token was never fed.
        assert driver.core.stats().main.cached - before == (len(request.history) - 1) // 4


def test_second_block_of_equal_tokens_stays_private():
    driver = Driver(prefix_config())
    for _ in range(2):
        driver.submit(prompt_of(20), max_tokens=6, stop=())
    driver.run(check=True)
    driver.require_expected()
    assert driver.core.stats().main.cached == 6


def test_chain_goes_on_when_the_first_of_two_equal_blocks_is_evicted():
    driver = Driver(prefix_config(num_blocks=21))
    driver.submit(prompt_of(24), max_tokens=1, stop=())
    long = driver.submit(prompt_of(24), max_tokens=26, stop=())
    driver.schedule(StepMode.TRY_PREFILL)
    driver.retire()
    while len(long.output) < 3:
        driver.step()
    driver.submit(prompt_of(32, 7), max_tokens=1, stop=())
    driver.schedule(StepMode.TRY_PREFILL)
    driver.retire()
    assert driver.core.stats().prefix_evictions >= 1
    driver.run(check=True)
    driver.submit(long.history[:40], max_tokens=2, stop=())
    driver.run(check=True)
    driver.require_expected()
    assert driver.core.stats().prefix_hit_tokens == 36 - 8


def test_blocks_in_limbo_are_revived():
    driver = Driver(prefix_config(depth=2))
    first = driver.submit(prompt_of(20), max_tokens=1, stop=())
    driver.schedule(StepMode.TRY_PREFILL)
    driver.commit()
    assert first.reason == FinishReason.LENGTH
    assert driver.core.stats().main.limbo == 5
    driver.submit(prompt_of(20), max_tokens=3, stop=())
    again = driver.schedule(StepMode.TRY_PREFILL)
    assert again.hit_tokens.tolist() == [8]
    assert driver.core.stats().main.limbo == 1
    driver.commit()
    driver.done(again.step_id)
    driver.core.check()
    driver.run(check=True)
    driver.require_expected()


def test_thousand_cancelled_requests_leave_every_count_alone():
    driver = Driver(prefix_config())
    driver.submit(prompt_of(30), max_tokens=1, stop=())
    driver.run()
    running = driver.submit(prompt_of(8, 3), max_tokens=60, stop=())
    driver.step()
    before = driver.core.stats()
    queued = [driver.submit(prompt_of(30), max_tokens=1, stop=()) for _ in range(1000)]
    driver.core.probe()
    driver.core.abort([r.uid for r in queued])
    driver.poll()
    after = driver.core.stats()
    assert [getattr(after, p) for p in ("main", "swa", "state", "draft")] == [
        getattr(before, p) for p in ("main", "swa", "state", "draft")
    ]
    driver.run()
    driver.require_expected([running])


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("moment", ["queued", "replay_in_flight", "between_chunks", "running", "decode_in_flight"])
def test_abort_of_a_hit_in_every_phase_leaves_the_prefix_to_others(moment, depth):
    driver = Driver(prefix_config(depth=depth, max_chunk=5, chunk_align=1))
    driver.submit(prompt_of(30), max_tokens=1, stop=())
    driver.run()
    before = driver.core.stats().main
    hit = driver.submit(prompt_of(30), max_tokens=20, stop=())
    if moment == "replay_in_flight":
        driver.schedule(StepMode.TRY_PREFILL)
    elif moment == "between_chunks":
        driver.step()
    elif moment in ("running", "decode_in_flight"):
        while len(hit.output) < 6:
            driver.step()
        if moment == "decode_in_flight" and not driver.open:
            driver.schedule(StepMode.DECODE)
    driver.core.abort([hit.uid])
    driver.poll()
    driver.core.check()
    while driver.open:
        driver.retire()
    driver.run(check=True)
    assert hit.reason == FinishReason.ABORT
    after = driver.core.stats().main
    # Nothing is lost; what the request computed behind the prefix may be offered too.
    assert (after.held, after.limbo, after.free + after.cached) == (0, 0, after.total)
    assert after.cached >= before.cached
    again = driver.submit(prompt_of(30), max_tokens=5, stop=())
    driver.run(check=True)
    driver.require_expected([again])
    assert driver.core.stats().prefix_hit_tokens == 20 * (1 if moment == "queued" else 2)


def test_probing_a_blocked_prompt_changes_nothing():
    driver = Driver(prefix_config(num_blocks=16, max_num_seqs=2))
    driver.submit(prompt_of(20), max_tokens=1, stop=())
    driver.run()
    running = driver.submit(prompt_of(24, 1), max_tokens=20, stop=())
    driver.schedule(StepMode.TRY_PREFILL)
    driver.retire()
    driver.submit(prompt_of(20) + prompt_of(30, 2), max_tokens=2, stop=())  # hits, and does not fit
    before = driver.core.stats()
    for _ in range(5):
        assert not driver.core.probe().want
        assert driver.schedule(StepMode.TRY_PREFILL).num_reqs == 0
    after = driver.core.stats()
    assert (after.main, after.prefix_queries) == (before.main, before.prefix_queries)
    driver.run(check=True)
    driver.require_expected()
    assert running.reason == FinishReason.LENGTH


@pytest.mark.parametrize("depth", [1, 2])
def test_many_requests_with_one_prefix_share_a_small_pool(depth):
    driver = Driver(prefix_config(num_blocks=18, depth=depth, max_model_len=60))
    r = random.Random(0)
    for n in range(64):
        driver.submit(prompt_of(20) + prompt_of(r.randrange(0, 9), n), max_tokens=r.choice([1, 3, 20, 30]), stop=())
    while driver.core.unfinished:
        o = driver.step()
        require(o.num_batched_tokens <= driver.config.max_num_batched_tokens, "tokens of a step")
        main = driver.core.stats().main
        require(main.free + main.cached + main.held + main.limbo == main.total, main)
        driver.core.check()
    driver.run()
    driver.require_expected()
    stats = driver.core.stats()
    assert stats.preemptions > 0
    assert stats.prefix_hit_tokens > 30 * 12


def test_preempted_request_reuses_what_it_computed():
    driver = Driver(prefix_config(num_blocks=20))
    for n in range(4):
        driver.submit(prompt_of(16, n), max_tokens=30, stop=())
    driver.run(check=True)
    driver.require_expected()
    stats = driver.core.stats()
    assert stats.preemptions > 0
    assert stats.prefix_hit_tokens > 0


def test_extensions_of_a_prefix_that_ends_in_mid_block_do_not_meet():
    driver = Driver(prefix_config())
    driver.submit(prompt_of(18), max_tokens=1, stop=())
    driver.run()
    for seed in (1, 2):
        driver.submit(prompt_of(18) + prompt_of(5, seed), max_tokens=8, stop=())
    driver.run(check=True)
    driver.submit(prompt_of(18) + prompt_of(5, 3), max_tokens=8, stop=())
    driver.run(check=True)
    driver.require_expected()
    assert driver.core.stats().prefix_hit_tokens == 3 * 8


def test_blocks_of_a_request_that_failed_are_withdrawn():
    driver = Driver(prefix_config(max_chunk=8))
    driver.submit(prompt_of(16), max_tokens=1, stop=())
    driver.run()
    bad = driver.submit(prompt_of(16) + prompt_of(20, 1), max_tokens=5, stop=())
    plain = driver.sample

    def sample_nan(kind, rows):
        out = plain(kind, rows)
        out.row_status[:] = [row[0] == bad.uid and row[3] for row in rows]
        return out

    driver.sample = sample_nan
    driver.run(check=True)
    assert bad.reason == FinishReason.ENGINE
    assert driver.core.stats().main.cached == 4  # those of the first request
    driver.sample = plain
    hits = driver.core.stats().prefix_hit_tokens
    again = driver.submit(prompt_of(16) + prompt_of(20, 1), max_tokens=5, stop=())
    driver.run(check=True)
    driver.require_expected([again])
    assert driver.core.stats().prefix_hit_tokens - hits == 8


def test_request_without_lookup_computes_everything_and_is_offered():
    driver = Driver(prefix_config())
    driver.submit(prompt_of(20), max_tokens=1, stop=(), prefix_lookup=False)
    driver.run()
    driver.submit(prompt_of(20), max_tokens=1, stop=(), prefix_lookup=False)
    driver.run()
    stats = driver.core.stats()
    assert (stats.prefix_queries, stats.tokens_prefill, stats.main.cached) == (0, 40, 5)


def test_tables_of_a_step_may_be_longer_than_the_pool():
    driver = Driver(prefix_config(num_blocks=24, max_num_seqs=16, num_swa_slots=18, num_state_slots=18))
    driver.submit(prompt_of(40), max_tokens=1, stop=())
    driver.run()
    for seed in range(12):
        driver.submit([*prompt_of(40), seed], max_tokens=3, stop=())
    longest = 0
    while driver.core.unfinished:
        o = driver.step()
        tables = [o.bt_ids[a:b].tolist() for a, b in zip(o.bt_offsets[:-1], o.bt_offsets[1:], strict=True)]
        longest = max(longest, sum(map(len, tables)))
        require(all(table[:10] == tables[0][:10] for table in tables), "the prefix is shared")
    require(longest > 5 * 23, "the step is large enough to tell")
    driver.require_expected()
