"""Files read as a whole: not a device without an end, and not more than the limit."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from deepinfer_core import bounded_file
from deepinfer_core.bounded_file import read_bounded, read_bounded_text


def test_file_of_just_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"


def test_larger_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(OSError, match="it is larger than 5 bytes") as caught:
        read_bounded(path, 5)
    assert caught.value.errno == errno.EFBIG
    assert caught.value.strerror == "it is larger than 5 bytes"


def test_device_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_file, "PIECE_BYTES", 7)
    with pytest.raises(OSError, match="it is larger than 100 bytes"):
        read_bounded("/dev/zero", 100)


def test_pipe_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_file, "PIECE_BYTES", 3)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"0123456789",))
    writer.start()
    assert read_bounded(path, 10) == b"0123456789"
    writer.join()


def test_text_has_its_lines_as_pythons_own_reader_has_them(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("a\r\nb\rä\n".encode())
    assert read_bounded_text(path) == path.read_text("utf-8") == "a\nb\nä\n"
    path.write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        read_bounded_text(path)
