"""The C sources with each compiler that is present: no warning, and the core program runs."""

import os
import shutil
import subprocess
import sys

import pytest
from c_build import FLAGS, NATIVE, SOURCES, WRAP, link, run

pytestmark = pytest.mark.compiled

STRICT = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]
UNITS = [NATIVE / "src" / f"di_{name}.c" for name in ("handle", "siphash", "error", "pages")]


@pytest.fixture(params=["gcc", "clang"])
def compiler(request):
    path = shutil.which(request.param)
    if path is None:
        pytest.skip(f"{request.param} is not installed")
    return path


def test_sources_compile_without_a_warning(compiler, tmp_path):
    sources = [s for s in SOURCES if s.name != "di_checks.c"]
    done = subprocess.run(
        [compiler, *FLAGS, *STRICT, "-fsyntax-only", *sources], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_generated_validators_compile_without_a_warning(compiler, tmp_path):
    run([compiler, *FLAGS, *STRICT, "-O1", "-c", NATIVE / "src" / "di_checks.c", "-o", tmp_path / "out.o"])


@pytest.mark.parametrize(
    ("name", "flags"), [("core_program", WRAP), ("allocation_program", WRAP), ("threads_program", [])]
)
def test_program_passes(name, flags, core_objects, tmp_path):
    cc, objects = core_objects
    program = link(tmp_path / name, cc, [NATIVE / "tests" / "c" / f"{name}.c"], objects, flags)
    assert run([program]).splitlines()[-1] == "ok"


def test_units_program_passes(compiler, tmp_path):
    program = tmp_path / "units_program"
    run([compiler, *FLAGS, *STRICT, "-O1", *UNITS, NATIVE / "tests" / "c" / "units_program.c", "-o", program])
    assert run([program]).splitlines()[-1] == "ok"


def test_build_without_a_compiler_says_what_to_install(tmp_path):
    pytest.importorskip("setuptools")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-temp", tmp_path, "--build-lib", tmp_path]
    done = subprocess.run(
        command, cwd=NATIVE, env={**os.environ, "CC": "no-such-cc"}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        (
            "error: deepinfer-native needs a C11 compiler, and no-such-cc is not on PATH. Install one "
            "(Debian, Ubuntu: apt install gcc; Fedora: dnf install gcc), or name yours: CC=clang pip install ..."
        ),
    )
