"""A file written as a whole, also by a process that is killed while it writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer_core import whole_file
from deepinfer_core.whole_file import remove_remains, write_whole

OLD, NEW = "old\n" * 1000, "new\n" * 300_000  # more than a pipe or a buffer holds

# Kills itself with SIGKILL at the call of os.NAME, before it or behind it; a write happens by halves.
CHILD = """
import os, signal, sys
from pathlib import Path
from deepinfer_core import whole_file

path, name, when, named = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "named"
real = getattr(os, name)

def call(*args, **kwargs):
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "write":
        args = (args[0], args[1][: len(args[1]) // 2])
    result = real(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
    return result

if named:
    whole_file._write_new = whole_file._write_named
setattr(whole_file.os, name, call)
whole_file.write_whole(path, "new\\n" * 300_000)
"""


def killed(path: Path, name: str, when: str, *, named: bool = False) -> None:
    arguments = [str(path), name, when, "named" if named else "-"]
    done = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr


def remains(path: Path) -> list[Path]:
    return [item for item in path.parent.iterdir() if item != path]


@pytest.mark.parametrize("name", ["open", "write", "fsync", "link", "replace"])
@pytest.mark.parametrize("when", ["before", "behind"])
def test_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path, name: str, when: str) -> None:
    path = tmp_path / "file.txt"
    path.write_text(OLD)
    killed(path, name, when)
    is_new = (name, when) == ("replace", "behind")
    assert path.read_text() == (NEW if is_new else OLD)
    for left in remains(path):  # a file gets a name when it is whole
        assert left.read_text() == NEW
    assert len(remains(path)) == ((name, when) in (("link", "behind"), ("replace", "before")))
    remove_remains(path)
    assert remains(path) == []


def test_killed_writer_without_nameless_files_leaves_what_is_removed_later(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text(OLD)
    killed(path, "write", "behind", named=True)
    assert path.read_text() == OLD
    [left] = remains(path)
    assert left.suffix == whole_file.SUFFIX
    remove_remains(path)
    write_whole(path, NEW)
    assert (path.read_text(), remains(path)) == (NEW, [])


@pytest.mark.parametrize("absent", ["O_TMPFILE", "link"])
def test_systems_without_nameless_files_write_the_same(tmp_path: Path, monkeypatch, absent: str) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("no such call here")

    if absent == "link":
        monkeypatch.setattr(os, "link", refuse)
    else:
        monkeypatch.delattr(os, absent, raising=False)
    path = tmp_path / "file.txt"
    write_whole(path, NEW)
    assert (path.read_text(), remains(path)) == (NEW, [])


def test_mode_is_that_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "file.txt", NEW)
    finally:
        os.umask(before)
    assert (tmp_path / "file.txt").stat().st_mode & 0o777 == 0o640


def test_error_changes_nothing_and_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "file.txt"
    path.write_text(OLD)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(OSError, match="No space left"):
                write_whole(path, NEW)
        assert (path.read_text(), remains(path)) == (OLD, [])


def test_remains_of_other_files_stay(tmp_path: Path) -> None:
    for name in ("file.txt", ".file.txt.lock", ".other.txt.1.part", "file.txt.part"):
        (tmp_path / name).write_text("")
    remove_remains(tmp_path / "file.txt")
    assert len(remains(tmp_path / "file.txt")) == 3
