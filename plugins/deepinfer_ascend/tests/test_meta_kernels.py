"""Lowered kernels of index rows, of a decode step's fields, and of steps that continue one: integers, all equal."""

import pytest
import torch
from executed import MANY, MARKS, execute, kernel_cache  # noqa: F401 (a fixture)

from deepinfer_ascend.jit import serving
from deepinfer_ascend.plain import plain_op

pytestmark = MARKS


def empty(*shape):
    return torch.empty(*shape, dtype=torch.int32)


def numbers(low, high, *shape):
    return torch.randint(low, high, shape, dtype=torch.int32)


def test_index_rows_of_prefill():
    pivots = numbers(0, 20, MANY, 4)
    made = execute("window_rows", {}, {"out": empty(MANY, 37)}, pivots=pivots, rows=MANY, width=37)
    assert torch.equal(made["out"], plain_op("meta.window_index_prefill")(pivots, 37))
    window, compressed = numbers(-1, 9, MANY, 12), numbers(-1, 9, MANY, 33)
    given = {"window": window, "compressed": compressed, "offset": 100, "rows": MANY, "left": 12, "right": 33}
    made = execute("joined_rows", {}, {"out": empty(MANY, 45)}, **given)
    assert torch.equal(made["out"], plain_op("meta.index_cat")(window, compressed, 100))


def test_slots_through_block_tables():
    table, pairs = numbers(0, 50, 5, 6), torch.tensor([[0, 9], [24, 24], [51, 20], [72, 0], [101, 40]]).int()
    given = {"start_length": pairs, "table": table.reshape(-1), "per_block": 4, "base": 7}
    made = execute("table_rows", {}, {"out": empty(5, 40)}, rows=5, width=40, size=30, **given)
    assert torch.equal(
        made["out"], plain_op("meta.compressed_index")(pairs, 40, base=7, block_table=table, per_block=4)
    )
    entries, table, context = numbers(-2, 24, MANY, 33), numbers(0, 99, MANY, 6), numbers(0, 24, MANY)
    given = {"entries": entries, "table": table, "context": context, "per_block": 4}
    made = execute("slot_rows", {}, {"out": empty(MANY, 33)}, rows=MANY, width=33, blocks=6, **given)
    assert torch.equal(made["out"], plain_op("meta.logical_to_slot")(entries, table, 4, context=context))


@pytest.mark.slow
def test_tables_of_rows():
    tables, queries = numbers(-9, 9, 5, 33), torch.tensor([0, 998244353, -1, 4, 5] * 15).int()
    given = {"x": tables, "idx": queries, "rows": 75, "count": 5, "width": 33}
    made = execute("picked_rows", {}, {"out": empty(75, 33)}, **given)
    assert torch.equal(made["out"], plain_op("meta.block_tables")(tables, queries))


NAMES = {
    "ends": "cu_seqlens_q_incl", "positions": "positions", "queries": "query_indices", "context": "context_lens",
    "states": "state_slot_idx", "windows": "swa_slot_idx", "slots": "slot_swa", "spans": "swa_offset_len",
    "row_tables": "block_tables",
}  # fmt: skip


def test_fields_of_a_decode_step():
    """A request without rows, one beyond its window, a placeholder."""
    counts, lengths = torch.tensor([1, 3, 0, 2, 6]).int(), torch.tensor([9, 20, 5, 2, 140]).int()
    tables, states, slots = numbers(1, 99, 5, 12), numbers(0, 9, 5), numbers(0, 9, 5)
    valid = torch.ones(12, dtype=torch.bool)
    valid[7] = False
    wanted = plain_op("meta.decode_metadata")(
        counts, lengths, tables, states, slots, block_size=16, window=32, ring=38, ratios_sparse=(2,),
        ratios_dense=(1, 2), valid=valid,
    )  # fmt: skip
    outputs = {name: empty(12) for name in ("positions", "queries", "context", "states", "windows", "slots")}
    outputs |= {"ends": empty(5), "spans": empty(12, 2), "row_tables": empty(12, 12)}
    given = {"seqlens_q": counts, "seqlens_k": lengths, "state_slot": states, "swa_slot": slots, "tables": tables}
    given |= {"valid": valid.to(torch.uint8), "window": 32, "ring": 38, "n": 5, "rows": 12, "blocks": 12}
    made = execute("request_rows", {}, outputs, **given)
    for mine, theirs in NAMES.items():
        assert torch.equal(made[mine], wanted[theirs]), theirs
    outputs = {"done": empty(12), "slots": empty(12), "seen": empty(12), "runs": empty(12, 2)}
    given = {"positions": made["positions"].clone(), "row_tables": made["row_tables"].clone(), "per_block": 8}
    found = execute("ratio_rows", {"ratio": 2}, outputs, valid=valid.to(torch.uint8), rows=12, blocks=12, **given)
    names = {"done": "positions_c", "slots": "slot_main", "seen": "klen", "runs": "ca_offset_len"}
    for mine, theirs in names.items():
        assert torch.equal(found[mine], wanted[theirs][2]), theirs


def test_tokens_and_lengths_of_a_step_that_continues_one():
    """Requests that continue a row, fresh ones; ids out of range, look-backs that end, more drafts than there are."""
    n, drafts, grams, m, vocabulary = 5, 3, 3, 6, 50
    fresh, counts, remap = numbers(0, vocabulary, n, 4), torch.tensor([1, 4, 2, 3, 1]).int(), numbers(0, m, n)
    remap[1], remap[4], remap[0] = -1, -1, 3
    sampled, guesses = numbers(0, vocabulary, m), numbers(0, vocabulary, m, drafts)
    sampled[0], guesses[3, 0] = -1, vocabulary
    accepted = torch.tensor([1, 0, 3, 2, 7, 3]).int()
    win, table = numbers(-1, 40, n, drafts + grams - 1), numbers(-1, 30, vocabulary - 5)
    wanted = plain_op("meta.feed_tokens")(
        fresh, counts, remap, sampled, 11, vocab_size=vocabulary, drafts=guesses, accepted=accepted, ngram_win=win,
        ngram_table=table, ngram_pad=99,
    )  # fmt: skip
    given = {
        "fresh": fresh, "seqlens_q": counts, "remap": remap, "sampled": sampled, "guesses": guesses,
        "accepted": accepted, "win": win, "table": table, "vocabulary": vocabulary, "pad": 99, "n": n, "m": m,
        "rows": 11, "known": vocabulary - 5,
    }  # fmt: skip
    outputs = {"ids": empty(11), "ngrams": empty(11, grams)}
    made = execute("feed_rows", {"drafts": drafts, "grams": grams}, outputs, **given)
    assert torch.equal(made["ids"], wanted["input_ids"])
    assert torch.equal(made["ngrams"], wanted["ngram_token_ids"])
    start = numbers(0, 90, n)
    given = {
        "start": start,
        "seqlens_q": counts,
        "remap": remap,
        "accepted": accepted,
        "drafts": drafts,
        "n": n,
        "m": m,
    }
    ends = execute("corrected_ends", {}, {"out": empty(n)}, **given)["out"]
    assert torch.equal(ends, plain_op("meta.correct_lengths")(start, counts, remap, accepted, num_draft=drafts))


@pytest.mark.parametrize("more", [0, 33, 350])
def test_lengths_to_verify(more):
    """No probabilities, ones above 1, two requests of equal confidences."""
    confidence, remap = torch.rand(9, 5), numbers(-1, 9, MANY)
    confidence[2, 1], confidence[3], confidence[4] = float("nan"), 1.5, confidence[5]
    given = {"confidence": confidence, "remap": remap, "budget": more, "n": MANY, "m": 9}
    made = execute("verified_lengths", {"drafts": 5}, {"out": empty(MANY)}, **given)
    assert torch.equal(made["out"], plain_op("meta.verify_lengths")(confidence, remap, MANY + more))


@pytest.mark.slow
def test_rows_of_a_drafter():
    sampled, last = torch.tensor([3, -1, 50, 7, 49]).int(), torch.tensor([0, 5, 300, 31, 32]).int()
    slot, sizes = torch.tensor([1, 0, 4, 2, 3]).int(), {"block": 5, "window": 32}
    outputs = {"ids": empty(25), "positions": empty(25), "slots": empty(25), "keys": empty(25, 32), "own": empty(25, 5)}
    given = {"sampled": sampled, "last": last, "slot": slot, "ring": 38, "noise": 9, "vocabulary": 50, "n": 5}
    made = execute("draft_rows", sizes, outputs, **given)
    wanted = plain_op("meta.draft_inputs")(sampled, last, slot, ring=38, noise=9, vocab_size=50, **sizes)
    names = {"ids": "input_ids", "positions": "positions", "slots": "slot_draft", "keys": "window_index"}
    for mine, theirs in (names | {"own": "draft_index"}).items():
        assert torch.equal(made[mine], wanted[theirs]), theirs


@pytest.mark.slow
def test_a_step_without_drafts_and_n_grams():
    """The kernel then has fewer arguments, and the op gives it those."""
    pytest.importorskip("tilelang", reason="deepinfer-ascend[kernels] is not installed")
    from emulated_backend import emulated

    made = emulated()
    op = serving.serve(made.ops)["meta.feed_tokens"]
    fresh, counts, remap = numbers(0, 50, 3, 1), torch.ones(3).int(), torch.tensor([1, -1, 0]).int()
    sampled, win, table = numbers(0, 50, 3), numbers(-1, 40, 3, 2), numbers(-1, 30, 50)
    for grams in ({}, {"ngram_win": win, "ngram_table": table, "ngram_pad": 9}):
        found = op(fresh, counts, remap, sampled, 3, vocab_size=50, **grams)
        wanted = plain_op("meta.feed_tokens")(fresh, counts, remap, sampled, 3, vocab_size=50, **grams)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    made.close()
