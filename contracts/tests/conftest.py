"""Shared fixtures: recorded records, and the C validators compiled from the generated source."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CONTRACTS = HERE.parent
for folder in (HERE, CONTRACTS):  # importlib mode puts neither the helpers nor the generator on the path
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from c_library import CLibrary  # noqa: E402


@pytest.fixture(scope="session")
def c_checks(tmp_path_factory: pytest.TempPathFactory) -> CLibrary:
    """The C validators without the core, unoptimised: compiling them costs more than running them here."""
    pytest.importorskip("cffi", reason="cffi loads the compiled validators; pip install cffi")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler on PATH; install gcc to compare the C validators with the Python ones")
    native = CONTRACTS.parent / "native"
    out = tmp_path_factory.mktemp("checks") / "di_checks.so"
    command = [compiler, "-std=c11", "-O0", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{native / 'include'}", str(native / "src" / "di_checks.c"), "-o", str(out), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return CLibrary(out)
