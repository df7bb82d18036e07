"""Detokenizer: pieces joined are the whole text, characters stay whole, stops end it."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_core.text.detokenizer import Detokenizer, incomplete_tail
from deepinfer_core.text.tokenizer import Tokenizer

BYTES = [bytes([value]) for value in range(256)]


def streamed(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    pieces = []
    for token in ids:
        stop = detokenizer.push(token)
        pieces.append(detokenizer.take())
        if stop:
            return pieces
    detokenizer.finish()
    pieces.append(detokenizer.take())
    return pieces


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_one_at_a_time_equal_decoding_in_one_go(data: bytes) -> None:
    detokenizer = Detokenizer(BYTES)
    assert "".join(streamed(detokenizer, list(data))) == data.decode("utf-8", "replace")
    assert detokenizer.text == data.decode("utf-8", "replace")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=12), st.sets(st.integers(0, 60), max_size=12))
def test_valid_text_never_shows_a_replacement_sign(text: str, marks: set[int]) -> None:
    data = text.encode()
    edges = sorted({0, len(data), *(mark % (len(data) + 1) for mark in marks)})
    table = [data[a:b] for a, b in itertools.pairwise(edges)]
    pieces = streamed(Detokenizer(table), list(range(len(table))))
    assert "".join(pieces) == text
    assert ("\ufffd" in "".join(pieces)) == ("\ufffd" in text)


def test_shipped_tokenizer_streamed_equals_the_library(tokenizer: Tokenizer) -> None:
    import random

    draw = random.Random(7)
    for _ in range(200):
        ids = [draw.randrange(tokenizer.vocab_size) for _ in range(40)]
        whole = tokenizer._library.decode(ids, skip_special_tokens=True)
        assert "".join(streamed(Detokenizer(tokenizer.token_bytes), ids)) == whole == tokenizer.decode(ids)


def test_three_byte_sign_over_two_tokens_with_a_space_after() -> None:
    table = ["你".encode()[:2], "你".encode()[2:], b" x"]
    assert streamed(Detokenizer(table), [0, 1, 2]) == ["", "你", " x", ""]


def test_broken_sequence_gives_one_replacement_sign() -> None:
    table = ["你".encode()[:2], b" x"]
    assert streamed(Detokenizer(table), [0, 1]) == ["", "\ufffd x", ""]
    assert streamed(Detokenizer(table), [0]) == ["", "\ufffd"]


def test_special_and_unknown_tokens_have_no_text() -> None:
    detokenizer = Detokenizer([b"a", b""])
    assert streamed(detokenizer, [0, 1, 999, 0]) == ["a", "", "", "a", ""]


def test_stop_string_across_tokens_ends_the_text() -> None:
    detokenizer = Detokenizer([b"one ST", b"OP two"], ["STOP"])
    assert streamed(detokenizer, [0, 1]) == ["one ", ""]
    assert (detokenizer.text, detokenizer.stop) == ("one ", "STOP")


def test_stop_string_is_kept_with_the_include_flag() -> None:
    detokenizer = Detokenizer([b"one ST", b"OP two"], ["STOP"], include_stop=True)
    assert "".join(streamed(detokenizer, [0, 1])) == "one STOP"


def test_held_text_comes_out_at_the_end() -> None:
    assert streamed(Detokenizer([b"one ST"], ["STOP"]), [0]) == ["one ", "ST"]


def test_stop_strings_count_only_after_min_tokens() -> None:
    detokenizer = Detokenizer([b"x"], ["x"], min_tokens=2)
    assert [detokenizer.push(0) for _ in range(3)] == [False, False, True]
    assert detokenizer.text == "xx"


def test_stop_token_text_is_added_only_if_given() -> None:
    hidden = Detokenizer([b"a E"], ["END"])
    hidden.push(0)
    hidden.finish()
    shown = Detokenizer([b"a E"], ["END"])
    shown.push(0)
    shown.finish(b"<eos>")
    assert (hidden.text, shown.text) == ("a E", "a E<eos>")


def test_text_can_be_read_between_pieces() -> None:
    detokenizer = Detokenizer(BYTES)
    taken = ""
    for value in b"abc":
        detokenizer.push(value)
        assert detokenizer.text == "abc"[: len(detokenizer.text)]
        taken += detokenizer.take()
    assert taken == detokenizer.text == "abc"


def test_character_begun_in_the_prompt_is_completed_once() -> None:
    emoji = "🙂".encode()
    tail = incomplete_tail(b"smile " + emoji[:2])
    assert tail == emoji[:2]
    assert streamed(Detokenizer([emoji[2:3], emoji[3:], b"!"], prompt_tail=tail), [0, 1, 2]) == ["", "🙂", "!", ""]


def test_unfinished_character_of_the_prompt_leaves_no_trace_in_other_text() -> None:
    assert streamed(Detokenizer([b"a"], prompt_tail=b"\xf0\x9f"), [0]) == ["a", ""]


def test_incomplete_tail_of_whole_characters_is_empty() -> None:
    for data in (b"", b"abc", "é".encode(), "🙂".encode(), b"\x80\x80", b"\xff"):
        assert incomplete_tail(data) == b""
