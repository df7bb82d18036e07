"""Compiling the core's sources and programs of the tests; compilers are optional, so the callers skip without one."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

NATIVE = Path(__file__).parents[1]
SOURCES = sorted((NATIVE / "src").glob("di_*.c"))
VERSION = tomllib.loads((NATIVE / "pyproject.toml").read_text())["project"]["version"]
FLAGS = ["-std=c11", "-pthread", f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'src'}", f'-DDI_VERSION="{VERSION}"']
WRAP = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc", "free")]
"""Of the linker: calls of the allocator go to the ``__wrap_`` functions of a program."""


def compiler() -> list[str] | None:
    """The command of a C compiler: ``CC``, else gcc or clang; None without one."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    path = shutil.which("gcc") or shutil.which("clang")
    return [path] if path else None


def run(command, **options) -> str:
    """stdout; AssertionError with both streams where the program fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        text = f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
        raise AssertionError(f"{command[0]} failed with {done.returncode}:\n{text}")
    return done.stdout


def compile_core(folder: Path, cc: list[str], flags: list[str], root: Path = NATIVE) -> list[Path]:
    """Object files of the core in ``folder``. The generated checks dominate, and need no optimisation."""
    folder.mkdir(exist_ok=True)
    objects = []
    for source in sorted((root / "src").glob("di_*.c")):
        target = folder / f"{source.stem}.o"
        optimise = ["-O0"] if source.name == "di_checks.c" else ["-O1"]
        include = [f"-I{root / 'include'}", f"-I{root / 'src'}"]
        run([*cc, *include, *FLAGS, *optimise, "-g", *flags, "-c", source, "-o", target])
        objects.append(target)
    return objects


def link(target: Path, cc: list[str], sources, objects, flags: list[str]) -> Path:
    """A program of test sources and the core's objects."""
    run([*cc, *FLAGS, "-O1", "-g", *flags, *sources, *objects, "-lm", "-o", target])
    return target


def fuzz_sources(target: str) -> list[Path]:
    """Files of one fuzz target, without a main function."""
    return sorted((NATIVE / "fuzz").glob(f"{target}*.c"))
