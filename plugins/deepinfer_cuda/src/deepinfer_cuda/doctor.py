"""What the cuda backend rests on: device and driver, compilers, the cache of compiled kernels, and torch."""

from __future__ import annotations

import os

from deepinfer_core.types import DoctorCheck, HostInfo
from deepinfer_cuda.jit.folder import cache_root, tilelang_version
from deepinfer_cuda.jit.toolkit import nvcc, toolkit_version
from deepinfer_cuda.probe import probe


def checks(host: HostInfo) -> list[DoctorCheck]:
    """One line for each thing that is looked at."""
    return [_device(host), _compiler(), _cache(), _torch()]


def _device(host: HostInfo) -> DoctorCheck:
    report = probe(host)
    if report.usable:
        return DoctorCheck("device", "ok", f"{', '.join(report.devices)}; driver {report.driver}")
    return DoctorCheck(
        "device", "problem", "no device can be used", reason="; ".join(report.reasons), remedy=report.remedy
    )


def _compiler() -> DoctorCheck:
    found = toolkit_version()
    if found:
        return DoctorCheck("compiler", "ok", f"nvcc {found} ({nvcc()}), tilelang {tilelang_version()}")
    return DoctorCheck(
        "compiler",
        "problem",
        "no CUDA compiler",
        reason="kernels are compiled at first use, by nvcc",
        remedy="install the CUDA toolkit 13, or carry a cache made with python -m deepinfer_cuda.jit.warm",
    )


def _cache() -> DoctorCheck:
    root = cache_root()
    existing = next(path for path in (root, *root.parents) if path.exists())
    if os.access(existing, os.W_OK | os.X_OK):
        return DoctorCheck("kernels", "ok", f"kept in {root}")
    return DoctorCheck(
        "kernels",
        "problem",
        f"compiled kernels cannot be kept in {root}",
        reason=f"{existing} cannot be written",
        remedy="set DEEPINFER_CUDA_CACHE to a folder that can",
    )


def _torch() -> DoctorCheck:
    try:
        import torch
    except (ImportError, OSError) as exc:  # OSError: a shared library of it is missing
        return DoctorCheck(
            "torch",
            "problem",
            f"torch cannot be imported: {type(exc).__name__}: {exc}",
            reason="tensors of the device are torch's",
            remedy="pip install --force-reinstall 'torch>=2.11,<2.15'",
        )
    if torch.version.cuda is None:
        return DoctorCheck(
            "torch",
            "problem",
            f"torch {torch.__version__} is built without CUDA",
            reason="tensors of the device are torch's",
            remedy="pip install a torch built for CUDA: https://pytorch.org/get-started/locally",
        )
    return DoctorCheck("torch", "ok", f"{torch.__version__}, CUDA {torch.version.cuda}")
