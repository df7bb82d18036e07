"""StopScanner: what is found and what is held back, for every way of cutting the text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_core.text.stops import StopScanner


def plain_search(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Character by character: the first stop string that is complete, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


def scan(pieces: list[str], stops: list[str]) -> tuple[str, str | None, int]:
    """``(text, stop, most characters held)``."""
    scanner = StopScanner(stops)
    out = ""
    fed = 0
    held = 0
    for piece in pieces:
        released, stop = scanner.feed(piece)
        out += released
        fed += len(piece)
        if stop is not None:
            return out, stop, held
        held = max(held, fed - len(out))
    return out + scanner.flush(), None, held


def cut(text: str, marks: set[int]) -> list[str]:
    edges = sorted({0, len(text), *(mark % (len(text) + 1) for mark in marks)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@settings(max_examples=300, deadline=None)
@given(
    st.text("abc", max_size=20),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.sets(st.integers(0, 100), max_size=10),
)
def test_result_does_not_depend_on_the_cuts(text: str, stops: list[str], marks: set[int]) -> None:
    found = scan(cut(text, marks), stops)
    assert found[:2] == plain_search(text, stops)
    assert found[2] < max(map(len, stops))


def test_text_that_may_become_a_stop_string_is_held() -> None:
    scanner = StopScanner(["END"])
    assert scanner.feed("the E") == ("the ", None)
    assert scanner.feed("N") == ("", None)
    assert scanner.feed("x") == ("ENx", None)


@pytest.mark.parametrize(("text", "want"), [("xab", ("x", "ab")), ("xb", ("x", "b"))])
def test_the_stop_that_began_earlier_wins_at_one_end(text: str, want: tuple[str, str]) -> None:
    assert StopScanner(["b", "ab"]).feed(text) == want


def test_an_inner_stop_that_is_complete_first_wins() -> None:
    assert StopScanner(["abc", "b"]).feed("abc") == ("a", "b")


def test_repeated_prefix_is_found() -> None:
    assert scan(["aa", "ab"], ["aab"])[:2] == ("a", "aab")
