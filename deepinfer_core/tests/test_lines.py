"""LineReader: whole lines, and no waiting for one that is not there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepinfer_core.cli import lines
from deepinfer_core.cli.lines import LineReader
from deepinfer_core.errors import InvalidInputFile


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


def test_of_a_line_beyond_the_limit_one_byte_too_much_is_kept(
    pipe: tuple[LineReader, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 4)
    reader, write = pipe
    os.write(write, b"abc")
    assert not reader.is_ready()
    os.write(write, b"defgh\nabcd\nx")
    os.close(write)
    assert list(reader) == [b"abcde\n", b"abcd\n", b"x"]


def test_line_without_an_end_ends_the_reading(pipe: tuple[LineReader, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As /dev/zero has one: it is looked for so far, and no further."""
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 4)
    monkeypatch.setattr(lines, "MOST_SKIPPED_BYTES", 8)
    reader, write = pipe
    os.write(write, b"one\n" + b"0" * 13 + b"\n")  # as far as it may go
    assert next(reader) == b"one\n"
    assert next(reader) == b"00000\n"
    os.write(write, b"0" * 13 + b"\n" + b"0" * 14)
    with pytest.raises(InvalidInputFile, match="standard input has a line without an end"):
        list(reader)
    assert list(reader) == [b"00000\n"]  # what came before it is not lost


def test_pipe_that_nobody_writes_to_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    monkeypatch.setattr(lines, "TOLD_AFTER_S", 0.05)

    def write_late() -> None:
        time.sleep(0.5)
        path.write_bytes(b"one\n")

    writer = threading.Thread(target=write_late)
    writer.start()
    with lines.told_if_it_waits(path), path.open("rb") as stream:
        assert stream.read() == b"one\n"
    writer.join()
    assert capsys.readouterr().err == f"deepinfer: waiting for somebody to write to the pipe {path}\n"


def test_file_is_opened_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"one\n")
    with lines.told_if_it_waits(tmp_path / "file"):
        assert (tmp_path / "file").read_bytes() == b"one\n"
    assert capsys.readouterr().err == ""


def test_descriptor_that_cannot_be_read_is_an_input_error(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    try:
        with pytest.raises(InvalidInputFile, match="cannot read standard input"):
            next(LineReader(descriptor))
    finally:
        os.close(descriptor)


def test_end_is_ready_and_stops(pipe: tuple[LineReader, int]) -> None:
    reader, write = pipe
    os.close(write)
    assert reader.is_ready()
    assert list(reader) == []
