"""What a whole file may be written to: links, pipes, devices, and the streams of the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from deepinfer_core.whole_file import write_whole


def test_link_stays_a_link_and_its_file_is_written(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_link_to_nothing_makes_the_file_that_it_names(tmp_path):
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "real").read_text() == "new"


def test_pipe_gets_the_text_and_stays_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    got = []
    reader = threading.Thread(target=lambda: got.append(path.read_text()))
    reader.start()
    write_whole(path, "text")
    reader.join(10)
    assert got == ["text"]
    assert path.is_fifo()


def test_device_takes_what_comes_and_stays_a_device():
    from pathlib import Path

    write_whole(Path(os.devnull), "text")
    assert Path(os.devnull).is_char_device()


def test_folder_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, "text")


def test_file_that_standard_output_goes_to_gets_the_text_in_its_turn(tmp_path):
    script = (
        "import sys; from pathlib import Path; from deepinfer_core.whole_file import write_whole\n"
        "print('before'); write_whole(Path('/dev/stdout'), 'text\\n'); print('after')"
    )
    with open(tmp_path / "log", "w") as log:
        subprocess.run([sys.executable, "-c", script], stdout=log, check=True, timeout=60)
    assert (tmp_path / "log").read_text() == "before\ntext\nafter\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["log"]
