"""One request packed by hand: what the fields mean, without a second implementation."""

from deepinfer_native.reference_pack import Geometry, Row, pack_decode, pack_prefill

G = Geometry(block_size=4, window=4, swa_ring=6, ratios_sparse=(2,), max_blocks=64)
TOKENS = [10, 11, 12, 13, 14, 15, 16, 17]


def row(start, q):
    return Row(TOKENS, start, q, block_table=[3, 5], swa_slot=1, state_slot=2)


def as_lists(packed, *names):
    return [packed[n][2].tolist() if isinstance(packed[n], dict) else packed[n].tolist() for n in names]


def test_first_chunk_has_no_history():
    p = pack_prefill([row(0, 5)], G)
    assert as_lists(p, "input_ids", "positions") == [[10, 11, 12, 13, 14], [0, 1, 2, 3, 4]]
    # keys 0 and 1 (positions 0-1 and 2-3) lie in block 3, two keys a block
    assert as_lists(p, "positions_c", "slot_main", "cu_compressed_q") == [[0, 2], [6, 7], [0, 2]]
    assert as_lists(p, "load_main", "ks", "ke") == [[[3, 0, 2, 0]], [0] * 5, [0, 1, 1, 2, 2]]
    # no history: the W rows in front of the new ones are zero rows
    assert as_lists(p, "load_swa", "slot_swa") == [[[-1, 0, 4, 0]], [6, 7, 8, 9, 10]]
    assert p["swa_pivots"].tolist() == [[0, 0, 4, 1], [0, 0, 4, 2], [0, 0, 4, 3], [0, 0, 4, 4], [0, 0, 5, 4]]


def test_second_chunk_reads_its_window_from_the_ring():
    p = pack_prefill([row(5, 2)], G)
    assert as_lists(p, "positions_c", "slot_main") == [[4], [10]]
    assert as_lists(p, "load_main", "ke") == [[[3, 0, 2, 0], [5, 0, 1, 2]], [3, 3]]
    assert as_lists(p, "load_swa", "slot_swa") == [[[1, 1, 5, 0]], [11, 6]]
    assert p["swa_pivots"].tolist() == [[1, 3, 4, 1], [2, 2, 4, 2]]


def test_chunk_that_ends_no_key_still_has_a_row():
    p = pack_prefill([row(0, 1)], G)
    assert as_lists(p, "positions_c", "slot_main", "load_main") == [[0], [-1], [[-1, 0, 1, 0]]]


def test_decode_rows_store_a_key_when_they_end_one():
    p = pack_decode([row(6, 1), row(7, 1)], G)
    assert as_lists(p, "positions_c", "slot_main", "klen") == [[0, 6], [-1, 11], [3, 4]]
    assert as_lists(p, "slot_swa", "swa_offset_len") == [[6, 7], [[9, 4], [10, 4]]]
    assert as_lists(p, "context_lens", "query_indices") == [[7, 8], [0, 1]]
