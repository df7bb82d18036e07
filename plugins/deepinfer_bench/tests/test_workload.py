"""Prompts from a seed."""

from __future__ import annotations

import pytest

from deepinfer_bench.workload import Prompts, Shape, arrivals, digest, read_text, readable_ids, text_ids
from deepinfer_core.errors import InvalidInputFile, NotSupported

SHAPE = Shape(3, 5, 2)


def test_prompts_are_those_of_the_seed_and_differ_by_round():
    one = Prompts(range(3, 100), 7)
    assert one.make(SHAPE, "a") == Prompts(range(3, 100), 7).make(SHAPE, "a")
    made = [one.make(SHAPE, "a"), one.make(SHAPE, "b"), Prompts(range(3, 100), 8).make(SHAPE, "a")]
    assert len({digest(prompts) for prompts in made}) == 3
    assert [len(prompt) for prompt in made[0]] == [5, 5, 5]


def test_prompts_of_a_text_are_pieces_of_it():
    text = tuple(range(50, 90))
    for prompt in Prompts(range(3, 100), 0, text).make(Shape(20, 39, 0), "a"):
        assert prompt == list(range(prompt[0], prompt[0] + 39))


def test_ids_that_the_model_refuses_are_left_out():
    def check(ids):
        if 7 in ids:
            raise NotSupported("an image")

    assert list(readable_ids(10, check)) == [3, 4, 5, 6, 8, 9]
    assert list(readable_ids(10, None)) == [3, 4, 5, 6, 7, 8, 9]


def test_text_that_is_too_short_is_refused(tmp_path):
    path = tmp_path / "text"
    path.write_text("abc")
    text = read_text(str(path))
    assert text_ids(text, lambda text: list(text.encode()), 3) == (97, 98, 99)
    with pytest.raises(InvalidInputFile, match="the text has 3 tokens, and a prompt 4"):
        text_ids(text, lambda text: list(text.encode()), 4)


@pytest.mark.parametrize("name", ["absent", "."])
def test_text_that_cannot_be_read_is_refused(tmp_path, name):
    with pytest.raises(InvalidInputFile, match="cannot read the text"):
        read_text(str(tmp_path / name))


def test_text_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "text").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInputFile, match="cannot read the text"):
        read_text(str(tmp_path / "text"))


def test_trace_has_every_request_before_the_first_step():
    trace = arrivals(SHAPE, 9)
    assert trace == [{"request": i, "at_step": 0, "prompt_tokens": 5, "max_tokens": 9} for i in range(3)]
