"""Build the core with AddressSanitizer and UndefinedBehaviorSanitizer, and run the tests on it.

``python native/sanitize.py [pytest arguments]``; needs gcc. The package is copied to a temporary folder, so the
installed library stays as it is. Leaks of the interpreter are not reported; the C program runs with leak
detection.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# -fno-wrapv: some Pythons are built with -fwrapv, which silences the overflow check.
SANITIZE = [
    "-g",
    "-O1",
    "-fno-omit-frame-pointer",
    "-fno-wrapv",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
]


def load_build() -> Any:
    """The module ``build_ffi.py``."""
    spec = importlib.util.spec_from_file_location("build_ffi", HERE / "build_ffi.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(HERE / "build_ffi.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flags(build: Any) -> list[str]:
    return ["-std=c11", "-pthread", f"-I{HERE / 'include'}", f"-I{HERE / 'src'}", f'-DDI_VERSION="{build.VERSION}"']


def build_package(folder: Path, build: Any) -> None:
    """A copy of the package with a sanitized library."""
    package = folder / "deepinfer_native"
    shutil.copytree(
        HERE / "src" / "deepinfer_native", package, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.c")
    )
    wrapper = folder / "_native.c"
    build.ffi.emit_c_code(str(wrapper))
    include = sysconfig.get_paths()["include"]
    sources = [str(wrapper), *(str(HERE / s) for s in build.SOURCES)]
    target = str(package / "_native.abi3.so")
    limited = "-DPy_LIMITED_API=0x030b0000"
    subprocess.check_call(
        ["gcc", "-shared", "-fPIC", *SANITIZE, *flags(build), limited, f"-I{include}", *sources, "-o", target]
    )


def run_core_program(folder: Path, build: Any) -> None:
    wrap = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc", "free")]
    program = str(folder / "core_program")
    sources = [*(str(HERE / s) for s in build.SOURCES), str(HERE / "tests" / "c" / "core_program.c")]
    subprocess.check_call(["gcc", *SANITIZE, *flags(build), *wrap, *sources, "-o", program])
    subprocess.check_call([program])


def run_tests(folder: Path, arguments: list[str]) -> int:
    runtime = subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True).strip()
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        "PYTHONPATH": str(folder),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",
    }
    where = "import deepinfer_native; print(deepinfer_native.__file__)"
    found = subprocess.check_output([sys.executable, "-c", where], env=environment, text=True).strip()
    if not found.startswith(str(folder)):
        raise RuntimeError(f"the tests would run on {found}, not on the sanitized copy in {folder}")
    skipped = ["--deselect", str(HERE / "tests" / "test_build.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", str(HERE / "tests"), *skipped, *arguments]
    return subprocess.call(command, env=environment)


def main(arguments: list[str]) -> int:
    build = load_build()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_core_program(folder, build)
        build_package(folder, build)
        return run_tests(folder, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
