"""The file under several writers, and under writers that are really killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from verify_entries import entry

from deepinfer_core.errors import BaselineError
from deepinfer_verify.ppl import storage
from deepinfer_verify.ppl.storage import held_baseline, read_baseline

# Writes entries SEED-0, SEED-1, ... one update each, and says each when it is done; without end if COUNT is 0.
WRITER = """
import itertools, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from verify_entries import entry
from deepinfer_verify.ppl.storage import held_baseline

path, seed, count = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
for at in itertools.count() if count == 0 else range(count):
    with held_baseline(path) as held:
        held.put(entry(key=f"{seed}-{at}"))
    print(f"{seed}-{at}", flush=True)
"""


def writer(path: Path, seed: str, count: int = 0) -> subprocess.Popen[str]:
    arguments = [str(Path(__file__).parent), str(path), seed, str(count)]
    return subprocess.Popen([sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True)


def put(path: Path, *keys: str) -> None:
    for key in keys:
        with held_baseline(path) as held:
            held.put(entry(key=key))


def test_killed_writers_lose_nothing_that_was_said_and_leave_no_half_file(tmp_path):
    path = tmp_path / "b.json"
    put(path, "first")
    chance, said = random.Random(5), {"first"}
    for seed in range(8):
        process = writer(path, str(seed))
        assert process.stdout is not None
        said.add(process.stdout.readline().strip())  # it is at work
        time.sleep(chance.uniform(0, 0.02))
        os.kill(process.pid, signal.SIGKILL)
        said.update(process.stdout.read().split())
        process.wait(timeout=60)
        entries = read_baseline(path)
        assert said <= set(entries)
        assert all(found == entry(key=key) for key, found in entries.items())
        for left in tmp_path.glob(".b.json.*.part"):  # named when it was whole
            assert read_baseline(left)
    put(path, "last")  # the lock went with each of them
    assert sorted(item.name for item in tmp_path.iterdir()) == [".b.json.lock", "b.json"]


def test_updates_at_the_same_time_are_all_there(tmp_path):
    path = tmp_path / "b.json"
    processes = [writer(path, str(seed), 12) for seed in range(3)]
    for process in processes:
        process.communicate(timeout=100)
        assert process.returncode == 0
    assert set(read_baseline(path)) == {f"{seed}-{at}" for seed in range(3) for at in range(12)}


def test_lock_that_another_process_holds_is_told_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "LOCK_TIMEOUT_S", 0.05)
    path = tmp_path / "b.json"
    with held_baseline(path), pytest.raises(BaselineError) as caught, held_baseline(path):
        pass
    assert str(caught.value) == (
        f"E_BASELINE: {path} is held by another process for 0 s\n"
        f"  reason: it has the lock {tmp_path / '.b.json.lock'}\n"
        "  remedy: wait for it, or end it: a lock goes with the process that holds it"
    )


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder in which nobody can make a file")
def test_lock_that_cannot_be_made_is_told_at_once(monkeypatch):
    monkeypatch.setattr(storage, "LOCK_TIMEOUT_S", 5.0)  # what the library waits for, as for a lock that is held
    with pytest.raises(BaselineError) as caught, held_baseline(Path("/proc/baseline.json")):
        pass
    assert str(caught.value) == (
        "E_BASELINE: cannot write beside the file of baselines /proc/baseline.json\n"
        "  reason: No such file or directory\n"
        "  remedy: check --baseline, and the rights on its folder"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that gives zeros without end")
def test_device_is_no_file_of_baselines_to_update():
    with pytest.raises(BaselineError) as caught, held_baseline(Path("/dev/full")):
        pass
    assert str(caught.value).startswith(
        "E_BASELINE: cannot update the file of baselines /dev/full\n  reason: it is no regular file\n"
    )


def test_missing_file_is_an_error_unless_it_is_to_be_made(tmp_path):
    path = tmp_path / "b.json"
    with pytest.raises(BaselineError) as caught:
        read_baseline(path)
    assert str(caught.value) == (
        f"E_BASELINE: there is no file of baselines {path}\n"
        "  reason: without one there is nothing to compare with\n"
        "  remedy: correct --baseline, or make the file with --update"
    )
    with held_baseline(path) as held:
        assert held.entries == {}
    assert not path.exists()


def test_folder_in_its_place_and_a_folder_that_is_not_there_are_errors(tmp_path):
    with pytest.raises(BaselineError, match="cannot read the file of baselines"):
        read_baseline(tmp_path)
    with pytest.raises(BaselineError) as caught, held_baseline(tmp_path / "none" / "b.json"):
        pass
    assert caught.value.reason == f"{tmp_path / 'none'} is no folder"
    assert not (tmp_path / "none").exists()


def test_file_that_is_no_text_is_an_error(tmp_path):
    path = tmp_path / "b.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BaselineError, match="it is no UTF-8"):
        read_baseline(path)


def test_damaged_file_is_never_overwritten(tmp_path):
    path = tmp_path / "b.json"
    path.write_text('{"version": 1, "entries": {')
    with pytest.raises(BaselineError), held_baseline(path) as held:
        held.put(entry())
    assert path.read_text() == '{"version": 1, "entries": {'


def test_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "b.json"
    put(path, "first")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BaselineError) as caught:
        put(path, "second")
    assert caught.value.reason == "No space left on device"
    assert set(read_baseline(path)) == {"first"}
