"""The plain rule: examples worked out by hand."""

from __future__ import annotations

import pytest
from attrs import evolve

from deepinfer_verify.replay.contents import NOTHING, UNUSED, Chain, shown
from deepinfer_verify.replay.findings import MAX_KEPT, Findings
from deepinfer_verify.replay.rule import Geometry, Prompt, decode_window, hit_of, rows_of

SIZES = Geometry(window=4, keep=6, block=4, ring=6, ratios=(1, 2))


def decoder(prompt: Prompt, begin: int, end: int) -> list[tuple[int, list[int]]]:
    rows = rows_of(prompt, begin, end, SIZES)
    return [(row.position, list(row.decoder_window)) for row in rows if row.decoder_window is not None]


def test_off_runs_every_row_with_its_whole_window():
    assert decoder(Prompt(10, "off"), 5, 8) == [(5, [2, 3, 4, 5]), (6, [3, 4, 5, 6]), (7, [4, 5, 6, 7])]


def test_mask_runs_every_row_and_sees_nothing_in_front_of_the_kept_ones():
    # 10 tokens, 6 kept: windows begin at position 4.
    expected = [(2, []), (3, []), (4, [4]), (5, [4, 5]), (6, [4, 5, 6]), (7, [4, 5, 6, 7]), (8, [5, 6, 7, 8])]
    assert decoder(Prompt(10, "mask"), 2, 9) == expected


def test_compact_drops_rows_and_leaves_one_of_a_chunk_in_front():
    assert decoder(Prompt(10, "compact"), 2, 9) == decoder(Prompt(10, "mask"), 4, 9)
    assert decoder(Prompt(10, "compact"), 0, 3) == [(2, [])]
    assert decoder(Prompt(10, "compact"), 3, 4) == [(3, [])]


@pytest.mark.parametrize("mode", ["off", "mask", "compact"])
def test_prompt_that_is_kept_whole_is_the_same_in_every_mode(mode):
    assert decoder(Prompt(6, mode), 0, 6) == decoder(Prompt(6, "off"), 0, 6)


def test_rows_store_their_window_key_if_it_is_among_the_last_of_their_chunk():
    rows = list(rows_of(Prompt(20, "compact"), 0, 15, SIZES))
    assert [row.position for row in rows if row.stores_window] == [9, 10, 11, 12, 13, 14]
    assert [row.position for row in rows if row.stores_decoder_window] == [14]  # the kept ones begin there


def test_replayed_rows_write_no_compressed_key():
    rows = list(rows_of(Prompt(20, "off", start=4, hit=8), 4, 12, SIZES))
    assert [row.position for row in rows if row.stores_key[1]] == [8, 9, 10, 11]
    assert [row.position for row in rows if row.stores_key[2]] == [9, 11]
    assert [list(row.encoder_window) for row in rows[:5]] == [[4], [4, 5], [4, 5, 6], [4, 5, 6, 7], [5, 6, 7, 8]]
    assert rows[0].keys == {1: 5, 2: 2}


@pytest.mark.parametrize(
    ("shared", "length", "mode", "expected"),
    [
        (3, 20, "off", (0, 0)),  # no whole block
        (4, 20, "off", (0, 0)),  # the window and nothing more
        (9, 20, "off", (4, 8)),
        (9, 9, "off", (4, 8)),
        (8, 8, "off", (0, 0)),  # one token is left to run: a block less
        (20, 20, "off", (12, 16)),
        (20, 21, "compact", (15, 20)),  # 6 kept of 21
        (20, 30, "mask", (16, 20)),
    ],
)
def test_hit_is_whole_blocks_without_a_window_and_without_kept_rows(shared, length, mode, expected):
    assert hit_of(shared, length, mode, SIZES) == expected


@pytest.mark.parametrize(
    ("shared", "length", "mode", "expected"),
    [
        (12, 20, "off", (0, 0)),
        (16, 20, "off", (4, 16)),
        (16, 20, "compact", (6, 16)),  # 14 is the first that is kept
        (16, 40, "compact", (8, 16)),
        (12, 15, "mask", (1, 12)),
    ],
)
def test_exact_hit_runs_more_of_it_again(shared, length, mode, expected):
    assert hit_of(shared, length, mode, evolve(SIZES, exact=(12, 8))) == expected


def test_decode_rows_see_their_window_whatever_is_kept():
    assert list(decode_window(2, SIZES)) == [0, 1, 2]
    assert list(decode_window(9, SIZES)) == [6, 7, 8, 9]


def test_values_stand_for_all_tokens_before_and_are_shown_as_positions():
    chain = Chain()
    first = chain.of([5, 6, 7]).tolist()
    assert chain.of([5, 6, 7], [8]).tolist()[:3] == first
    assert chain.of([5, 6, 7, 8, 9]).tolist()[:3] == first
    assert Chain().of([4, 6, 7]).tolist()[1] != first[1]
    known = chain.of([5, 6, 7, 8, 9])
    assert shown(known[[1, 2, 4]], known) == "1..2, 4"
    known_with_holes = known.copy()
    known_with_holes[:3] = [NOTHING, NOTHING, UNUSED]
    assert shown(known_with_holes, known) == "nothing, a row that nobody may read, 3..4"
    assert shown(known[:0], known) == "empty"


def test_findings_count_all_and_keep_the_first():
    findings = Findings()
    for at in range(MAX_KEPT + 5):
        findings.check("slots", "case", f"row {at}", at, at if at % 2 else -1)
    assert (findings.compared["slots"], findings.count) == (MAX_KEPT + 5, (MAX_KEPT + 5 + 1) // 2)
    both = Findings()
    for _ in range(3):
        both.add(findings)
    assert (both.count, len(both.kept)) == (3 * findings.count, MAX_KEPT)
    assert both.kept[0].text == "case: row 0: -1, expected 0"
