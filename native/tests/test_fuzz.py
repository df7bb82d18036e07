"""Random C calls on the core: seeded in the gate, millions of them and libFuzzer in the nightly.

``fuzz_core`` makes right calls in random order and lets the core compare its structures after each; ``fuzz_api`` makes
wrong ones and requires that they change nothing. ``DEEPINFER_SEED`` sets the seed, which is printed.
"""

import os
import shutil
import subprocess
import sys

import pytest
from c_build import FLAGS, NATIVE, SOURCES, compile_core, compiler, fuzz_sources, link, run

pytestmark = pytest.mark.compiled

SEED = int(os.environ.get("DEEPINFER_SEED", "20251129"))
TARGETS = ["fuzz_core", "fuzz_api"]
REACHED = {
    "fuzz_core": ["preemptions", "aborts", "overrun_rows", "stale_rows", "outputs"],
    "fuzz_api": ["refused", "preemptions", "aborts", "overrun_rows", "outputs"],
}


@pytest.fixture(scope="module")
def programs(core_objects, tmp_path_factory):
    cc, objects = core_objects
    folder = tmp_path_factory.mktemp("fuzz")
    standalone = NATIVE / "fuzz" / "standalone.c"
    return {t: link(folder / t, cc, [*fuzz_sources(t), standalone], objects, []) for t in TARGETS}


def run_seeded(program, seed, operations, folder):
    """The counters that the program prints."""
    print("seed", seed)
    out = run([program, seed, operations], cwd=folder)
    return {name: int(value) for name, value in (pair.split("=") for pair in out.split())}


@pytest.mark.parametrize("target", TARGETS)
def test_random_calls_keep_the_core_whole(target, programs, tmp_path):
    counts = run_seeded(programs[target], SEED, 100_000 if target == "fuzz_core" else 30_000, tmp_path)
    assert {name: counts[name] for name in REACHED[target] if not counts[name]} == {}


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("target", TARGETS)
def test_ten_million_random_calls_keep_the_core_whole(target, programs, tmp_path):
    cc = compiler()
    objects = compile_core(tmp_path / "objects", cc, ["-O2"])
    program = link(tmp_path / target, cc, [*fuzz_sources(target), NATIVE / "fuzz" / "standalone.c"], objects, ["-O2"])
    workers, total = min(4, os.cpu_count() or 1), 10_000_000 if target == "fuzz_core" else 1_000_000
    print("seeds", SEED, "..", SEED + workers - 1)
    running = []
    for i in range(workers):
        folder = tmp_path / f"worker{i}"
        folder.mkdir()
        command = [str(program), str(SEED + i), str(total // workers)]
        running.append(subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    failures = [(i, p.returncode, p.stderr.read()) for i, p in enumerate(running) if p.wait() != 0]
    assert failures == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", TARGETS)
def test_libfuzzer_finds_nothing_in_minutes(target, tmp_path):
    clang = shutil.which("clang")
    if clang is None:
        pytest.skip("clang is not installed: apt install clang")
    program = tmp_path / target
    sanitize = ["-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined"]
    command = [clang, *FLAGS, "-g", "-O1", *sanitize, *fuzz_sources(target), *SOURCES, "-lm", "-o", program]
    build = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if "fuzzer" in build.stderr and build.returncode:
        pytest.skip("this clang has no libFuzzer runtime: apt install libclang-rt-dev")
    assert (build.returncode, build.stderr) == (0, "")
    found = tmp_path / "corpus"
    found.mkdir()
    options = ["-max_total_time=120", f"-seed={SEED}", "-max_len=3000", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run([str(program), str(found), *options], capture_output=True, text=True, check=False)
    print(done.stderr[-400:], file=sys.stderr)
    assert done.returncode == 0, done.stderr[-6000:]
