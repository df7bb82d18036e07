"""What executing lowered kernels on the processor needs, looked at before a model is loaded and work begins."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile

from deepinfer_ascend.jit.hosted import FLAGS, cache_folder
from deepinfer_core.errors import BackendUnavailable, ConfigError, VendorImportError

ASKED = "DEEPINFER_ASCEND_LOWERED asks for lowered kernels"


def require_tools() -> None:
    """Whether there are TileLang, a C++ compiler that works, and a folder to keep kernels in.

    :raises VendorImportError: TileLang is not installed. :raises BackendUnavailable: there is no such compiler.
    :raises ConfigError: the folder cannot be written.
    """
    if importlib.util.find_spec("tilelang") is None:
        raise VendorImportError(
            f"{ASKED}, and TileLang, which lowers them, is not installed",
            reason="there is no module tilelang",
            remedy="pip install 'deepinfer-ascend[kernels]', or unset DEEPINFER_ASCEND_LOWERED",
            details={"backend": "ascend", "vendor": "tilelang"},
        )
    fault = _compiler_fault()
    if fault:
        raise BackendUnavailable(
            f"{ASKED}, and there is no C++ compiler for them",
            reason=fault,
            remedy="install g++ 11 or newer, or set CXX to such a one; or unset DEEPINFER_ASCEND_LOWERED",
            details={"backend": "ascend"},
        )
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as exc:
        raise ConfigError(
            f"compiled kernels cannot be kept in {folder}",
            reason=f"{type(exc).__name__}: {exc.strerror}",
            remedy="set DEEPINFER_ASCEND_CACHE to a folder that can be written",
            details={"field": "DEEPINFER_ASCEND_CACHE", "folder": str(folder)},
        ) from exc


def _compiler_fault() -> str:
    """Empty: one that takes C++20 is there."""
    named = os.environ.get("CXX")
    compiler = named or shutil.which("g++")
    if not compiler:
        return "g++ is not on PATH, and CXX is not set"
    command = [compiler, *(flag for flag in FLAGS if flag != "-shared"), "-fsyntax-only", "-x", "c++", "-"]
    text = "#include <cstdint>\ntemplate <class T> concept any_type = true;\n"
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"{'CXX' if named else 'g++'}: {type(exc).__name__}: {exc}"
    if done.returncode:
        said = next(iter(done.stderr.strip().splitlines()), f"exit status {done.returncode}")
        return f"{compiler} does not compile C++20: {said}"
    return ""
