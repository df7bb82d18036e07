"""The file of answers: what a death at any byte leaves, and who may write it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.errors import InvalidInputFile, OutputError
from deepinfer_eval.answers import Header, read_answers
from deepinfer_eval.journal import Journal

KEYS = [(0, 0), (2, 1), (0, 1), (1, 0), (1, 1), (2, 0)]


def fill(path: Path, header: Header, make: Any, keys: list[tuple[int, int]]) -> None:
    """Write what is missing of ``keys``, as a run does."""
    with Journal(str(path)) as journal:
        journal.begin(header)
        for item, sample in keys:
            if (item, sample) not in journal.found.done:
                journal.append(make(item, sample, "\u7b54\u3048\n \U0001f600"))


def test_file_cut_at_any_byte_ends_with_every_answer_once(tmp_path: Path, header: Header, answer_record: Any) -> None:
    whole = tmp_path / "whole.jsonl"
    fill(whole, header, answer_record, KEYS)
    data = whole.read_bytes()
    assert read_answers(str(whole)).done == set(KEYS)
    path = tmp_path / "cut.jsonl"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with Journal(str(path)) as journal:
            kept = data[:length].count(b"\n")
            assert len(journal.found.done) == max(0, kept - 1)
            assert (journal.found.header is None) == (kept == 0)
        assert path.read_bytes() == data[:length]  # looking at it changes nothing
        fill(path, header, answer_record, KEYS)
        assert path.read_bytes() == data


def test_answer_is_in_the_file_as_soon_as_it_is_told(tmp_path: Path, header: Header, answer_record: Any) -> None:
    path = tmp_path / "a.jsonl"
    with Journal(str(path)) as journal:
        journal.begin(header)
        for count, (item, sample) in enumerate(KEYS, 1):
            journal.append(answer_record(item, sample))
            assert len(read_answers(str(path)).answers) == count


def test_file_has_one_writer_at_a_time(tmp_path: Path, header: Header) -> None:
    path = str(tmp_path / "a.jsonl")
    with Journal(path) as journal:
        journal.begin(header)
        with pytest.raises(OutputError, match="another process writes"):
            Journal(path)
    Journal(path).close()


def test_full_disk_leaves_whole_lines(
    tmp_path: Path, header: Header, answer_record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    write = os.write

    def full(fd: int, data: Any) -> int:
        if len(data) > 20:
            return write(fd, data[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(str(path)) as journal:
        journal.begin(header)
        journal.append(answer_record(0, 0))
        before = path.read_bytes()
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OutputError, match=r"E_OUTPUT|cannot write"):
            journal.append(answer_record(0, 1))
        monkeypatch.undo()
        assert path.read_bytes() == before
        journal.append(answer_record(0, 1))
    assert read_answers(str(path)).done == {(0, 0), (0, 1)}


@pytest.mark.parametrize("data", [b"notes of mine", b'{"index": 0, "text": "x"}\n', b"\n", b'{"deepinfer_eval": 9}\n'])
def test_file_of_something_else_is_refused_and_stays(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    with pytest.raises(InvalidInputFile):
        Journal(str(path))
    assert path.read_bytes() == data


def test_bad_line_is_named(tmp_path: Path, header: Header, answer_record: Any) -> None:
    path = tmp_path / "a.jsonl"
    fill(path, header, answer_record, KEYS[:2])
    good = path.read_bytes()
    changes = {
        b"{bad\n": "line 4 of .* is not JSON",
        b"[]\n": "line 4 of .* is list, not an object",
        good.splitlines(keepends=True)[1]: "line 4 of .* is the same answer as line 2",
        json.dumps(answer_record(3, 0)).encode() + b"\n": "line 4 of .* is sample 0 of item 3",
        json.dumps(answer_record(0, 1, finish_reason=None)).encode() + b"\n": "line 4 of .* has no finish_reason",
        json.dumps(answer_record(0, 1, scorer=5)).encode() + b"\n": "line 4 of .* has a scorer that is none",
    }
    for line, message in changes.items():
        path.write_bytes(good + line)
        with pytest.raises(InvalidInputFile, match=message):
            read_answers(str(path))


def test_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        Journal(str(tmp_path / "none" / "a.jsonl"))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("dataset",), []),
        (("dataset", "name"), None),
        (("dataset", "sha256"), 1),
        (("dataset", "items"), True),
        (("dataset", "items"), -3),
        (("samples",), True),
        (("samples",), 0),
        (("parameters",), None),
        (("run",), "x"),
        (("run", "versions"), 3),
        (("run", "settings"), []),
    ],
)
def test_header_with_a_wrong_part_is_refused(
    tmp_path: Path, header: Header, place: tuple[str, ...], value: Any
) -> None:
    record: Any = json.loads(json.dumps(header.as_record()))
    at = record
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(InvalidInputFile, match=r"line 1 of .* is a header without dataset"):
        read_answers(str(path))
