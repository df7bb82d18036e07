"""The compilers on this machine: nvcc, and the C++ compiler that it calls."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

_RELEASE = re.compile(r"release (\d+\.\d+)")


@functools.cache
def nvcc() -> str:
    """Path of nvcc: below ``CUDA_HOME`` or ``CUDA_PATH``, on ``PATH``, below ``/usr/local/cuda``; empty: none."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = os.environ.get(variable)
        if home and (Path(home) / "bin" / "nvcc").is_file():
            return str(Path(home) / "bin" / "nvcc")
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(usual) if usual.is_file() else "")


@functools.cache
def toolkit_version() -> str:
    """``13.0``, as nvcc says; empty where there is none or it does not run."""
    path = nvcc()
    if not path:
        return ""
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = _RELEASE.search(told)
    return found.group(1) if found else ""


def host_compiler() -> str:
    """The C++ compiler that nvcc calls: ``CXX`` where it is one program, else the first one on ``PATH``.

    TileLang would take ``CC`` as well; a value such as ``ccache gcc`` is two words, and nvcc takes a program's name.
    """
    words = shlex.split(os.environ.get("CXX", ""))
    if len(words) == 1 and shutil.which(words[0]):
        return words[0]
    return next((path for path in map(shutil.which, ("g++", "clang++", "c++")) if path), "")
