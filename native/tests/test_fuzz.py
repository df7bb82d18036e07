"""The libFuzzer target builds and survives a short run (nightly: it needs clang and a minute)."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[1]
VERSION = tomllib.loads((NATIVE / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fuzz_target_survives_a_short_run(tmp_path):
    clang = shutil.which("clang")
    if clang is None:
        pytest.skip("clang is not installed")
    sources = sorted((NATIVE / "src").glob("di_*.c"))
    command = [clang, "-std=c11", "-g", "-O1", "-pthread", "-fsanitize=fuzzer,address,undefined"]
    command += [f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'src'}", f'-DDI_VERSION="{VERSION}"']
    program = tmp_path / "fuzz_core"
    build = subprocess.run(
        [*command, NATIVE / "fuzz" / "fuzz_core.c", *sources, "-o", program],
        capture_output=True,
        text=True,
        check=False,
    )
    if "fuzzer" in build.stderr and build.returncode:
        pytest.skip("this clang has no libFuzzer runtime")
    assert (build.returncode, build.stderr) == (0, "")
    options = ["-runs=3000", "-seed=1", "-max_len=1500", "-len_control=0", f"-artifact_prefix={tmp_path}/"]
    run = subprocess.run([program, *options], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
