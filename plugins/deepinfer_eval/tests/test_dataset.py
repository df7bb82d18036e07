"""Lines of a data set, good and bad."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from deepinfer_core.errors import InvalidInputFile
from deepinfer_core.parameters.named_parts import NamedPart
from deepinfer_eval.dataset import read_dataset


def test_items_have_ids_answers_and_scorers(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"id": 7, "question": "a?", "answer": "x", "topic": "left out"}\r\n\n'
        b'{"question": "b?", "answer": null, "scorer": {"name": "numeric", "params": {"abs_tol": 1}}}'
    )
    found = read_dataset(str(path))
    assert [(i.item_id, i.question, i.expected, i.line) for i in found.items] == [
        ("7", "a?", "x", 1),
        ("3", "b?", None, 3),
    ]
    assert found.items[1].scorer == NamedPart("numeric", {"abs_tol": 1})
    assert found.as_record() == {"name": "d.jsonl", "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "items": 2}


def test_all_bad_lines_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    lines = [
        '{"question": "a", "answer": 1}',
        "[1]",
        "null",
        "{bad",
        '{"question": "b"}',
        '{"question": "", "answer": 1}',
    ]
    lines += ['{"question": "c", "answer": 1, "id": "1"}', '{"question": "d", "answer": 1, "scorer": 3}']
    path.write_text("\n".join(lines))
    with pytest.raises(InvalidInputFile) as caught:
        read_dataset(str(path))
    assert caught.value.what == f"{path} has 7 lines that are no item"
    assert caught.value.details["lines"] == [2, 3, 4, 5, 6, 7, 8]
    assert "line 2: it is list, not an object; line 3: it is null, not an object; line 4: " in caught.value.reason
    assert caught.value.reason.endswith("; and 2 more")


@pytest.mark.parametrize("data", [b"", b"\n \n", b"\xff\n"])
def test_file_without_items_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(data)
    with pytest.raises(InvalidInputFile):
        read_dataset(str(path))


def test_file_that_is_not_there_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputFile, match="No such file"):
        read_dataset(str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize("answer", ["NaN", "1e999", '[{"x": -Infinity}]'])
def test_numbers_that_json_does_not_have_are_refused_before_anything_is_generated(tmp_path: Path, answer: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(f'{{"question": "a", "answer": {answer}}}')
    with pytest.raises(InvalidInputFile) as caught:
        read_dataset(str(path))
    assert caught.value.reason == "line 1: answer has NaN, or a number beyond all that JSON can say"
