"""Build the core with a sanitizer, and run the C programs and the tests on it.

``python native/sanitize.py {address,thread,portable} [pytest arguments]``; needs gcc. ``address`` is AddressSanitizer
with UndefinedBehaviorSanitizer, and runs the whole suite; ``thread`` is ThreadSanitizer, and runs what has threads.
``portable`` has UndefinedBehaviorSanitizer too, and runs the whole suite on what a processor without SSE2 gets. The
package is copied to a temporary folder, so the installed library stays as it is. Leaks of the interpreter are not
reported; the C programs run with leak detection.
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
PROGRAMS = HERE / "tests" / "c"
FUZZ = HERE / "fuzz"
SEED = os.environ.get("DEEPINFER_SEED", "20251129")
COMMON = ["-g", "-O1", "-fno-omit-frame-pointer"]
# -fno-wrapv: some Pythons are built with -fwrapv, which silences the overflow check.
SANITIZE = {
    "address": [*COMMON, "-fno-wrapv", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": [*COMMON, "-fsanitize=thread"],
    # Found by the dynamic linker like any library, so that nothing has to be preloaded.
    "portable": [
        *COMMON,
        "-U__SSE2__",
        "-DDI_NO_CLONES",
        "-fno-wrapv",
        "-fsanitize=undefined",
        "-fno-sanitize-recover=undefined",
    ],
}
RUNTIME = {"address": "libasan.so", "thread": "libtsan.so"}
WRAP = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc", "free")]
# Test modules that start threads; the others make no race.
THREADED = ("test_threads.py",)


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


def compile_core(folder: Path, build: Any, sanitize: list[str]) -> list[str]:
    """Object files of the core, for the programs and for the library."""
    objects = []
    for source in build.SOURCES:
        target = str(folder / f"{Path(source).stem}.o")
        subprocess.check_call(["gcc", "-fPIC", *sanitize, *flags(build), "-c", str(HERE / source), "-o", target])
        objects.append(target)
    return objects


def build_package(folder: Path, build: Any, sanitize: list[str], objects: list[str]) -> None:
    """A copy of the package with a sanitized library."""
    package = folder / "deepinfer_native"
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.c")
    shutil.copytree(HERE / "src" / "deepinfer_native", package, ignore=ignored)
    wrapper = folder / "_native.c"
    build.ffi.emit_c_code(str(wrapper))
    include = sysconfig.get_paths()["include"]
    target = str(package / "_native.abi3.so")
    limited = "-DPy_LIMITED_API=0x030b0000"
    command = ["gcc", "-shared", "-fPIC", *sanitize, *flags(build), limited, f"-I{include}", str(wrapper), *objects]
    subprocess.check_call([*command, "-lm", "-o", target])


def run_programs(folder: Path, build: Any, mode: str, objects: list[str]) -> None:
    """Every C program of the mode; each fails by its exit status."""
    standalone = str(FUZZ / "standalone.c")
    programs: dict[str, tuple[list[str], list[str], list[str]]] = {
        "threads_program": ([str(PROGRAMS / "threads_program.c")], [], []),
    }
    if mode != "thread":
        # steady_program measures memory, which a sanitizer keeps for itself.
        for source in sorted(set(PROGRAMS.glob("*_program.c")) - {PROGRAMS / "steady_program.c"}):
            programs[source.stem] = ([str(source)], WRAP if "__wrap_malloc" in source.read_text() else [], [])
        for target, calls in (("fuzz_core", "200000"), ("fuzz_api", "100000")):
            sources = [str(path) for path in sorted(FUZZ.glob(f"{target}*.c"))]
            programs[target] = ([*sources, standalone], [], [SEED, calls])
    units = [o for o in objects if Path(o).stem in ("di_handle", "di_siphash", "di_error", "di_pages")]
    for name, (sources, link, arguments) in programs.items():
        program = str(folder / name)
        # One stands in for the rest of the core, one includes the source that it looks into.
        linked = {"units_program": units, "ranges_program": []}.get(name, objects)
        command = ["gcc", *SANITIZE[mode], *flags(build), *link, *sources, *linked, "-lm", "-o", program]
        subprocess.check_call(command)
        sys.stdout.write(f"{name} {' '.join(arguments)}\n")
        sys.stdout.flush()
        subprocess.check_call([program, *arguments], cwd=folder)


def run_tests(folder: Path, mode: str, arguments: list[str]) -> int:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")])),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "TSAN_OPTIONS": "halt_on_error=1:report_signal_unsafe=0",
        "PYTHONMALLOC": "malloc",
    }
    if mode in RUNTIME:
        command = ["gcc", f"-print-file-name={RUNTIME[mode]}"]
        environment["LD_PRELOAD"] = subprocess.check_output(command, text=True).strip()
    where = "import deepinfer_native; print(deepinfer_native.__file__)"
    found = subprocess.check_output([sys.executable, "-c", where], env=environment, text=True).strip()
    if not found.startswith(str(folder)):
        raise RuntimeError(f"the tests would run on {found}, not on the sanitized copy in {folder}")
    tests = HERE / "tests"
    chosen = [str(tests / name) for name in THREADED] if mode == "thread" else [str(tests)]
    # Most of these, and tests marked so, compile and run programs of their own, without the sanitizer. The last one
    # measures resident memory, of which the sanitizer's allocator keeps what was given back.
    others = ("test_build.py", "test_fuzz.py", "test_mutants.py", "test_steady_memory.py")
    skipped = [f"--ignore={tests / name}" for name in others]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow and not compiled", "--timeout", "900"]
    command += [*chosen, *skipped, *arguments]
    return subprocess.call(command, env=environment)


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in SANITIZE:
        sys.stderr.write(__doc__)
        return 2
    mode = arguments[0]
    build = load_build()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        objects = compile_core(folder, build, SANITIZE[mode])
        run_programs(folder, build, mode, objects)
        build_package(folder, build, SANITIZE[mode], objects)
        return run_tests(folder, mode, arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
