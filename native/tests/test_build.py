"""The C sources with each compiler that is present: no warning, and the core program runs."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[1]
SOURCES = sorted((NATIVE / "src").glob("di_*.c"))
VERSION = tomllib.loads((NATIVE / "pyproject.toml").read_text())["project"]["version"]
FLAGS = ["-std=c11", "-pthread", f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'src'}", f'-DDI_VERSION="{VERSION}"']
STRICT = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]
UNITS = [NATIVE / "src" / f"di_{name}.c" for name in ("handle", "siphash", "error")]
WRAP = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc", "free")]


@pytest.fixture(params=["gcc", "clang"])
def compiler(request):
    path = shutil.which(request.param)
    if path is None:
        pytest.skip(f"{request.param} is not installed")
    return path


def run(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{command[0]} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def test_sources_compile_without_a_warning(compiler, tmp_path):
    sources = [s for s in SOURCES if s.name != "di_checks.c"]
    done = subprocess.run(
        [compiler, *FLAGS, *STRICT, "-fsyntax-only", *sources], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_generated_validators_compile_without_a_warning(compiler, tmp_path):
    run([compiler, *FLAGS, *STRICT, "-O1", "-c", NATIVE / "src" / "di_checks.c", "-o", tmp_path / "out.o"])


def test_core_program_passes(tmp_path):
    path = shutil.which("gcc") or shutil.which("clang")
    if path is None:
        pytest.skip("no C compiler is installed")
    program = tmp_path / "core_program"
    run([path, *FLAGS, *WRAP, "-O0", *SOURCES, NATIVE / "tests" / "c" / "core_program.c", "-o", program])
    assert run([program]).splitlines()[-1] == "ok"


def test_units_program_passes(compiler, tmp_path):
    program = tmp_path / "units_program"
    run([compiler, *FLAGS, *STRICT, "-O1", *UNITS, NATIVE / "tests" / "c" / "units_program.c", "-o", program])
    assert run([program]).splitlines()[-1] == "ok"
