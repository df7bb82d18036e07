"""LineReader: whole lines, and no waiting for one that is not there."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from deepinfer_core.cli.lines import LineReader


@pytest.fixture
def pipe() -> Iterator[tuple[LineReader, int]]:
    read, write = os.pipe()
    yield LineReader(read), write
    os.close(read)


def test_half_a_line_is_not_ready(pipe: tuple[LineReader, int]) -> None:
    reader, write = pipe
    assert not reader.is_ready()
    os.write(write, b"on")
    assert not reader.is_ready()
    os.write(write, b"e\ntwo\nthr")
    assert reader.is_ready()
    assert [next(reader), next(reader)] == [b"one\n", b"two\n"]
    assert not reader.is_ready()
    os.close(write)
    assert reader.is_ready()
    assert list(reader) == [b"thr"]


def test_end_is_ready_and_stops(pipe: tuple[LineReader, int]) -> None:
    reader, write = pipe
    os.close(write)
    assert reader.is_ready()
    assert list(reader) == []
