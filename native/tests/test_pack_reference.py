"""The C packers against the plain reference, on random schedules; and sampler inputs against the rules of 6.5."""

import numpy as np
import pytest
from native_driver import VOCAB, Driver, require, small_config

from deepinfer_contracts import ReplayMode, StepKind
from deepinfer_native.reference_pack import Geometry, Row, pack_decode, pack_prefill

SENTINELS = (11, 12)


def ngram_table():
    table = (np.arange(VOCAB - 5, dtype=np.int32) * 7 + 3) % 29  # the last five ids have no entry
    table[list(SENTINELS)] = -1
    return table


def geometry(config):
    return Geometry(
        block_size=config.block_size,
        window=config.window,
        swa_ring=config.ring,
        ratios_sparse=config.ratios_sparse,
        ratios_dense=config.ratios_dense,
        max_blocks=config.max_blocks,
        ngram=config.ngram,
        ngram_table=config.ngram_table,
        ngram_pad=config.ngram_pad,
        replay_mode=ReplayMode[config.replay_mode.upper()],
    )


def rows_of(driver, o):
    """The step as the reference wants it: tokens with the drafts appended, tables, slots."""
    offsets = o.bt_offsets.tolist()
    rows = []
    for i, uid in enumerate(o.seq_uid.tolist()):
        q, k = int(o.seqlens_q[i]), int(o.seqlens_k[i])
        tokens = list(driver.follower.requests[uid].history)
        if o.kind == StepKind.DECODE and driver.config.num_draft:
            pad = [VOCAB - 1] * driver.config.num_draft
            tokens += driver.drafts.get(uid, pad) if o.draft_read_slot[i] else pad
        table = o.bt_ids[offsets[i] : offsets[i + 1]].tolist()
        valid, end = int(o.swa_valid_start[i]), driver.device.hits[uid][1] if uid in driver.device.hits else 0
        row = Row(tokens, k - q, q, table, int(o.swa_slot[i]), int(o.state_slot[i]), valid, end)
        row.replay_mode = driver.modes.get(uid, ReplayMode[driver.config.replay_mode.upper()])
        if row.replay_mode != ReplayMode.OFF:
            row.keep_from = max(0, len(driver.follower.requests[uid].prompt) - driver.config.replay_keep)
        rows.append(row)
    return rows


def require_same(record, expected):
    for name, want in expected.items():
        got = getattr(record, name)
        if isinstance(want, dict):
            require((got or {}).keys() == want.keys(), name, "ratios", got and list(got), list(want))
            for ratio, array in want.items():
                np.testing.assert_array_equal(got[ratio], array, err_msg=f"{name}[{ratio}]")
        elif want is None:
            require(got is None, name, "is present")
        else:
            np.testing.assert_array_equal(got, want, err_msg=name)
            require(not isinstance(want, np.ndarray) or got.dtype == want.dtype, name, "dtype")


CASES = {
    "two_ratios": {},
    "drafts": {"num_draft": 3},
    "ngrams": {"ngram": 4, "ngram_table": ngram_table(), "ngram_pad": 2, "num_draft": 2},
    "small_blocks": {"block_size": 2, "num_blocks": 160},
    "wide_ring": {"swa_ring": 17, "window": 5},
    "no_window": {"window": 0, "num_swa_slots": 0},
    "sparse_only": {"ratios_dense": (), "ratios_sparse": (2,)},
    "dense_only": {"ratios_dense": (1, 4), "ratios_sparse": ()},
    "small_pool": {"num_blocks": 20},
    "prefix": {"prefix_cache": True},
    "prefix_blocks": {"prefix_cache": True, "block_size": 2, "num_blocks": 160, "replay_len": 11, "num_draft": 1},
    "mask": {"replay_mode": "mask", "replay_keep": 9},
    "compact": {"replay_mode": "compact", "replay_keep": 10},
    "compact_drafts": {"replay_mode": "compact", "replay_keep": 17, "num_draft": 3, "swa_ring": 19},
    "compact_prefix": {"replay_mode": "compact", "replay_keep": 9, "prefix_cache": True, "block_size": 2}
    | {"num_blocks": 160},
    "compact_exact": {"replay_mode": "compact", "replay_keep": 9, "prefix_cache": True, "replay_exact": True}
    | {"replay_len": 17, "replay_len_kept": 10},
    "prefix_no_window": {"prefix_cache": True, "window": 0, "num_swa_slots": 0},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_packed_arrays_equal_the_reference(case, chunk):
    config = small_config(max_chunk=chunk, chunk_align=2, **CASES[case])
    driver, g = Driver(config), geometry(config)
    rng = np.random.default_rng(chunk)
    for n in range(5):
        prompt = rng.integers(0, VOCAB, rng.integers(1, 36))
        if config.prefix_cache:
            prompt = np.concatenate([np.arange(24) + n % 2, prompt])
        request = driver.submit(prompt.tolist(), max_tokens=int(rng.integers(1, 10)))
        if config.replay_mode != "off":  # and two requests of another mode
            mode = ReplayMode(n % (1 + ReplayMode[config.replay_mode.upper()]))
            request = driver.submit(prompt.tolist()[1:] or [5], max_tokens=2, replay_mode=int(mode))
            driver.modes[request.uid] = mode
    kinds = set()
    while driver.core.unfinished:
        o = driver.schedule()
        if o.num_reqs:
            record = driver.core.pack(o.step_id)
            pack = pack_prefill if o.kind == StepKind.PREFILL else pack_decode
            require_same(record, pack(rows_of(driver, o), g))
            if o.step_id % 8 == 1:
                record.validate(driver.core.limits, 2, step=o)
            if o.kind == StepKind.DECODE:
                check_tables(record, rows_of(driver, o))
            driver.retire()
            kinds.add(o.kind)
        driver.poll()
    assert kinds == {StepKind.PREFILL, StepKind.DECODE}
    assert (driver.core.stats().prefix_hit_tokens > 0) == config.prefix_cache


def check_tables(record, rows):
    t = 0
    for row in rows:
        for _ in range(row.q):
            require(record.block_tables[t, : len(row.block_table)].tolist() == row.block_table, "block_tables", t)
            t += 1


def test_common_record_holds_no_more_than_asked():
    driver = Driver(small_config(inputs="InputMetadata"))
    driver.submit([1, 2, 3], max_tokens=2)
    o = driver.schedule()
    record = driver.core.pack(o.step_id)
    assert type(record).__name__ == "InputMetadata"
    assert record.ngram_token_ids is None
    record.validate(driver.core.limits, 2, step=o)


def test_sampler_inputs_follow_positions_and_parameters():
    driver = Driver(small_config(num_draft=2))
    a = driver.submit([1, 2, 3], max_tokens=9, stop=(5, 6), temperature=0.5, top_p=0.9, top_k=3, seed=11)
    b = driver.submit(list(range(6)), max_tokens=9, stop=(), min_p=0.1, repetition_penalty=1.5, seed=12)
    o = driver.schedule()
    s = driver.core.pack_sampler(o.step_id)
    assert s.selected_rows.tolist() == [2, 8]
    assert s.sample_pos.tolist() == [3, 6]
    assert s.stop_ids.tolist() == [[5, 6], [-1, -1]]
    assert s.temperature.tolist() == [0.5, 1.0]
    assert s.top_k.tolist() == [3, -1]
    assert s.seed.tolist() == [11, 12]
    np.testing.assert_allclose(s.min_p, [0, 0.1])
    np.testing.assert_allclose(s.repetition_penalty, [1, 1.5])
    assert s.first_row is None
    assert s.forced is None
    driver.retire()
    o = driver.schedule()
    s = driver.core.pack_sampler(o.step_id)
    assert o.kind == StepKind.DECODE
    assert s.selected_rows.tolist() == list(range(6))
    assert s.first_row.tolist() == [0, 3]
    assert s.row_count.tolist() == [3, 3]
    assert s.sample_pos.tolist() == [len(a.history), len(b.history)]
    slots = o.draft_read_slot.tolist()
    assert s.draft_rows.tolist() == [2 * slots[0], 2 * slots[0] + 1, 0, 2 * slots[1], 2 * slots[1] + 1, 0]
    assert s.draft_write_slot.tolist() == o.draft_write_slot.tolist()


def test_stop_ids_are_suppressed_until_min_tokens():
    driver = Driver(small_config(num_draft=1))
    driver.submit([1, 2, 3], max_tokens=9, min_tokens=3, stop=(5, 6))
    seen = []
    for _ in range(3):
        o = driver.schedule()
        s = driver.core.pack_sampler(o.step_id)
        seen.append([] if s.eos_suppress is None else s.eos_suppress.tolist())
        driver.sample = lambda kind, rows, take=driver.sample: reject_drafts(take(kind, rows))
        driver.retire()
    # ordinals 1; then 2 and 3; then 3 and 4
    assert seen == [[[0, 5], [0, 6]], [[0, 5], [0, 6], [1, 5], [1, 6]], [[0, 5], [0, 6]]]


def reject_drafts(out):
    if out.verified_ids is not None:
        out.verified_ids[:] = -1
        out.accepted[:] = 0
    out.sampled_ids[:] = 1
    return out


def test_forced_tokens_are_given_by_output_position():
    driver = Driver(small_config())
    driver.submit([1, 2, 3], max_tokens=9, stop=(), forced=[-1, 9, 8])
    driver.submit([4], max_tokens=9, stop=())
    seen = []
    for _ in range(4):
        o = driver.schedule()
        s = driver.core.pack_sampler(o.step_id)
        seen.append(None if s.forced is None else s.forced.tolist())
        driver.retire()
    assert seen == [None, [9, -1], [8, -1], None]


def test_records_are_the_same_objects_while_nothing_changes():
    driver = Driver(small_config(block_size=32, num_blocks=9))
    driver.submit([1, 2, 3], max_tokens=20, stop=())
    ids = []
    for _ in range(8):
        o = driver.schedule()
        m = driver.core.pack(o.step_id)
        ids.append((id(o), id(o.seqlens_q), id(m), id(m.positions)))
        driver.retire()
    assert ids[4:6] == ids[6:8]


def test_row_slots_stay_with_their_request():
    driver = Driver(small_config(max_num_seqs=3))
    rng = np.random.default_rng(4)
    for _ in range(8):
        driver.submit(rng.integers(0, VOCAB, 5).tolist(), max_tokens=int(rng.integers(2, 9)), stop=())
    slot_of = {}
    while driver.core.unfinished:
        o = driver.step()
        for uid, slot in zip(o.seq_uid.tolist(), o.row_slot.tolist(), strict=True):
            assert slot_of.setdefault(uid, slot) == slot
    assert set(slot_of.values()) == {1, 2, 3}


def test_table_deltas_rebuild_the_tables():
    driver = Driver(small_config(num_blocks=20))
    for n in range(5):
        driver.submit([n] * (3 + 4 * n), max_tokens=20, stop=())
    tables = np.zeros((driver.config.max_num_seqs + 1, driver.config.max_blocks), np.int32)
    while driver.core.unfinished:
        o = driver.schedule()
        for slot, column, block in o.bt_delta.tolist():
            tables[slot, column] = block
        offsets = o.bt_offsets.tolist()
        for i, slot in enumerate(o.row_slot.tolist()):
            ids = o.bt_ids[offsets[i] : offsets[i + 1]]
            np.testing.assert_array_equal(tables[slot, : len(ids)], ids)
        if o.num_reqs:
            driver.retire()


def test_every_new_state_slot_is_zeroed_first():
    driver = Driver(small_config(zero_swa_on_alloc=True))
    for n in range(6):
        driver.submit([n] * 5, max_tokens=3, stop=())
    seen = set()
    while driver.core.unfinished:
        o = driver.schedule()
        zeroed = {tuple(z) for z in o.zero_slots.tolist()}
        for uid, state, swa in zip(o.seq_uid.tolist(), o.state_slot.tolist(), o.swa_slot.tolist(), strict=True):
            if uid not in seen:
                assert {(3, state), (2, swa)} <= zeroed
            seen.add(uid)
        if o.num_reqs:
            driver.retire()
