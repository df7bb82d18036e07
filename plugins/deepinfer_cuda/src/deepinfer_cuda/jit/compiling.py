"""TileLang's compiler, called one way: lowering, compiling into the cache on disk, loading what launches."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from deepinfer_core.errors import BackendUnavailable, EngineError
from deepinfer_cuda.jit.folder import cache_folder
from deepinfer_cuda.jit.telling import Telling
from deepinfer_cuda.jit.toolkit import host_compiler, toolkit_version

# TileLang reads its options from the environment of the process, so one thread compiles at a time.
_LOCK = threading.RLock()
_KEPT: list[Any] = []
"""Compiled kernels, kept alive: a launching function does not say that it owns its module."""
_TELLING = Telling()


def load(label: str, program: Any, *, arch: str, pass_configs: Mapping[str, Any]) -> Callable[..., None]:
    """What launches ``program``: TVM's own function, without the checks in Python that TileLang puts before it."""
    with _LOCK:
        start = time.perf_counter()
        compiled = build(label, program, arch, pass_configs)
        _TELLING.had(label, arch, time.perf_counter() - start)
    executable = compiled.adapter.get_exportable_executable()
    module = executable.jit() if hasattr(executable, "jit") else executable
    _KEPT.append(compiled)
    launch: Callable[..., None] = module.main
    return launch


def build(label: str, program: Any, arch: str, pass_configs: Mapping[str, Any]) -> Any:
    """Compile ``program`` for ``arch``, or take it from the cache on disk."""
    import tilelang

    with _LOCK, _settings(arch):
        try:
            return tilelang.compile(
                program, target=_target(arch), execution_backend="tvm_ffi", pass_configs=dict(pass_configs) or None
            )
        except Exception as exc:
            raise _told(label, arch, exc) from exc


def lower(program: Any, arch: str, pass_configs: Mapping[str, Any]) -> str:
    """The CUDA source of ``program`` for ``arch``."""
    import tilelang
    from tilelang import tvm
    from tilelang.transform.pass_config import normalize_pass_configs
    from tvm.target import Target

    target = Target(_target(arch))
    configs = normalize_pass_configs(dict(pass_configs) or None) or {}
    with _LOCK, tvm.transform.PassContext(opt_level=3, config=dict(configs)), target:
        return str(tilelang.lower(program, target=target).kernel_source)


def in_target(arch: str, make: Callable[[], Any]) -> Any:
    """``make()`` where TileLang's language knows the target: some constructs ask for it."""
    import tilelang  # noqa: F401  (puts tvm on the path)
    from tvm.target import Target

    with _LOCK, Target(_target(arch)):
        return make()


def _target(arch: str) -> dict[str, Any]:
    """``code`` makes nvcc compile for this architecture alone, instead of a plain one beside it."""
    return {"kind": "cuda", "arch": arch, "code": [arch]}


@contextmanager
def _settings(arch: str) -> Iterator[None]:
    """TileLang's options for one compilation: our folder, no log, a host compiler that is one word."""
    wanted = {"TILELANG_CACHE_DIR": str(cache_folder(arch)), "TILELANG_PRINT_ON_COMPILATION": "0"}
    compiler = host_compiler()
    if compiler:
        wanted["CXX"] = compiler
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _told(label: str, arch: str, exc: Exception) -> BackendUnavailable | EngineError:
    """The error of a kernel that cannot be had: no compiler, or a program that does not compile."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    details = {"backend": "cuda", "kernel": label, "arch": arch}
    if isinstance(exc, OSError):
        return BackendUnavailable(
            f"kernel {label} cannot be compiled for {arch}",
            reason=f"the cache folder {cache_folder(arch)} cannot be used: {exc.strerror or exc}",
            remedy="set DEEPINFER_CUDA_CACHE to a folder that can be written",
            details=details,
        )
    if not toolkit_version() or not host_compiler():
        absent = "nvcc" if not toolkit_version() else "C++ compiler"
        return BackendUnavailable(
            f"kernel {label} cannot be compiled for {arch}",
            reason=f"no {absent} was found, and the kernel is not in {cache_folder(arch)}",
            remedy="install the CUDA toolkit and g++, or carry a cache made with "
            "python -m deepinfer_cuda.jit.warm; deepinfer doctor cuda says what is missing",
            details=details,
        )
    errors = [line for line in lines if "error" in line.lower()]
    return EngineError(
        f"kernel {label} does not compile for {arch}",
        reason=(errors or lines or [type(exc).__name__])[0],
        remedy="please report it, with the versions that deepinfer doctor cuda prints",
        details=details,
    )
