"""A process that is killed in any step leaves nothing to others: no file, no shared segment, no harm."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux: the test reads /proc")

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from native_driver import Driver, small_config
driver = Driver(small_config(depth=2, prefix_cache=True, window=4))
n = 0
while True:
    driver.submit([1, 2, 3] * 6 + [n % 50], max_tokens=9, stop=())
    for _ in range(3):
        driver.step()
    n += 1
    print(n, flush=True)
    sys.stdin.readline()
"""

# In a process of its own: it has one thread, so that a fork of it is whole.
FORKING = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from native_driver import Driver, require, small_config
driver = Driver(small_config(depth=2))
for n in range(6):
    driver.submit([n, 1, 2, 3], max_tokens=20)
for _ in range(4):
    driver.step()
before = driver.core.stats()
pid = os.fork()
if pid == 0:
    try:
        while driver.core.unfinished:
            driver.step()
    finally:
        os.kill(os.getpid(), signal.SIGKILL)
_, status = os.waitpid(pid, 0)
require(os.WTERMSIG(status) == signal.SIGKILL, "the child ended by itself")
require(driver.core.stats() == before, "the child changed its parent")
driver.run(check=True)
driver.require_expected()
print("ok")
"""


def shared_mappings(pid: int) -> list[str]:
    """Writable memory that other processes could see."""
    return [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if " rw-s " in line]


@pytest.mark.parametrize("rounds", [1, 4])
def test_killed_engine_process_leaves_no_file_and_no_segment(rounds, tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent)]
    child = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    for n in range(rounds):
        assert child.stdout.readline() == f"{n + 1}\n"
        if n + 1 < rounds:
            child.stdin.write("\n")
            child.stdin.flush()
    shared = shared_mappings(child.pid)
    files = [os.readlink(f) for f in Path(f"/proc/{child.pid}/fd").iterdir()]
    child.kill()
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert shared == []
    assert [f for f in files if not f.startswith("pipe:") and f != os.readlink("/proc/self/fd/2")] == []
    assert list(tmp_path.iterdir()) == []


def test_killed_fork_of_a_process_does_not_touch_the_core_of_its_parent():
    command = [sys.executable, "-c", FORKING, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr
