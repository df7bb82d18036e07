"""What the cuda backend rests on: compilers that fit the driver, the cache of compiled kernels, and torch."""

from __future__ import annotations

import os
import re
from pathlib import Path

from deepinfer_core.errors import ConfigError, VendorImportError
from deepinfer_core.types import DoctorCheck, HostInfo, ProbeReport
from deepinfer_cuda.arches import compiler_arch
from deepinfer_cuda.jit.folder import VARIABLE, cache_folder, cache_root, tilelang_version
from deepinfer_cuda.jit.toolkit import host_compiler, nvcc, toolkit_version
from deepinfer_cuda.probe import probe
from deepinfer_cuda.torch_build import torch_build
from deepinfer_cuda.vendor import serving as vendors
from deepinfer_cuda.vendor.loading import installed

_WARM = "carry a cache made elsewhere with python -m deepinfer_cuda.jit.warm"
_DRIVER_CUDA = re.compile(r"CUDA (\d+)\.(\d+)")


def checks(host: HostInfo) -> list[DoctorCheck]:
    """One line for each thing that is looked at, beside the device, which the core tells. Creates no CUDA context."""
    report = probe(host)
    arch = compiler_arch(report.arch) if report.usable else ""
    return [_torch(), *_compilers(report, arch), _cache(arch), *_vendors()]


def _torch() -> DoctorCheck:
    build = torch_build()
    if build.cuda is not None:
        return DoctorCheck("torch", "ok", f"{build.version}, built for CUDA {build.cuda[0]}.{build.cuda[1]}")
    found = f"torch {build.version} is built without CUDA" if build.version else "torch is not installed"
    return DoctorCheck(
        "torch",
        "problem",
        found,
        reason="tensors of the device are torch's",
        remedy="pip install a torch that is built for CUDA: https://pytorch.org/get-started/locally",
    )


def _compilers(report: ProbeReport, arch: str) -> list[DoctorCheck]:
    found = toolkit_version()
    if not found:
        return [_missing("compiler", "nvcc", "install the CUDA toolkit 13 and set CUDA_HOME", arch)]
    if not host_compiler():
        return [_missing("compiler", "C++ compiler for nvcc", "install g++", arch)]
    told = f"nvcc {found} ({nvcc()}), {host_compiler()}, tilelang {tilelang_version()}"
    driver = _DRIVER_CUDA.search(report.driver)
    if driver and int(found.split(".")[0]) > int(driver[1]):
        return [
            DoctorCheck(
                "compiler",
                "problem",
                f"nvcc {found} makes kernels that this driver cannot load",
                reason=f"the driver runs CUDA {driver[1]}.{driver[2]}",
                remedy=f"update the driver, or set CUDA_HOME to a toolkit of CUDA {driver[1]}",
            )
        ]
    return [DoctorCheck("compiler", "ok", told)]


def _missing(name: str, what: str, remedy: str, arch: str) -> DoctorCheck:
    """A compiler that is absent: a problem, unless compiled kernels are there already."""
    kept = kernels_in(cache_folder(arch)) if arch else 0
    if kept:
        text = f"no {what}; {kept} compiled kernels for {arch} are there, a size without one will be refused"
        return DoctorCheck(name, "note", text, remedy=remedy)
    reason = "kernels are compiled at first use"
    return DoctorCheck(name, "problem", f"no {what}", reason=reason, remedy=f"{remedy}; or {_WARM}")


def _cache(arch: str) -> DoctorCheck:
    root = cache_root()
    existing = next(path for path in (root, *root.parents) if path.exists())
    kept = f"{kernels_in(cache_folder(arch))} for {arch} " if arch else ""
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return DoctorCheck("kernels", "ok", f"{kept}kept in {root}")
    return DoctorCheck(
        "kernels",
        "problem",
        f"compiled kernels cannot be kept in {root}",
        reason=f"{existing} is no folder that can be written",
        remedy=f"set {VARIABLE} to one that can",
    )


def _vendors() -> list[DoctorCheck]:
    """The vendor libraries that the user names. They are not imported, which might create a context: their symbols are
    looked up where the backend is created."""
    if not os.environ.get(vendors.VARIABLE):
        return []  # the table imports torch
    from deepinfer_cuda.vendor.table import VENDORS

    try:
        return [DoctorCheck(f"vendor {name}", "ok", installed(VENDORS[name])) for name in vendors.chosen()]
    except (VendorImportError, ConfigError) as exc:
        return [DoctorCheck("vendors", "problem", exc.what, reason=exc.reason, remedy=exc.remedy)]


def kernels_in(folder: Path) -> int:
    """How many compiled kernels a folder of the cache has."""
    return sum(1 for _ in folder.glob("**/executable.so"))
