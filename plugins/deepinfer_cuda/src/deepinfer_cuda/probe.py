"""Which NVIDIA devices there are and whether kernels can run on them, without a CUDA context.

A context would take half a gigabyte of the device and, on a machine whose driver hangs, hang as well. Each step says
why it is the last one::

    device nodes -> permission -> NVML -> visible devices -> architecture -> torch's build -> the driver's CUDA
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from deepinfer_core.types import HostInfo, ProbeReport
from deepinfer_cuda import nvml
from deepinfer_cuda.arches import SUPPORTED, arch_of
from deepinfer_cuda.torch_build import torch_build

SCORE = 100
"""Above what a backend without a score of its own has."""
_DRIVER = "install the NVIDIA driver, r580 or newer for CUDA 13; or choose --backend cpu"
_TORCH = "pip install a torch that is built for CUDA (https://pytorch.org/get-started/locally); or choose --backend cpu"


def probe(host: HostInfo, root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> ProbeReport:
    """What is found below ``root``."""
    if not host.os.startswith("linux"):
        return _absent(f"NVIDIA devices are used on linux, this is {host.os}", "choose --backend cpu")
    nodes = sorted(path.name for path in (root / "dev").glob("nvidia[0-9]*"))
    if not nodes:
        # A driver without nodes is a container that was given no device: no accelerator is present for it.
        what = "; its driver is loaded: start the container with its devices" if driver_version(root) else ""
        return _absent(f"no device node /dev/nvidia*{what}", _DRIVER)
    refused = _no_permission(root, nodes)
    if refused:
        return _unusable((), refused, "give this user access to the device nodes of NVIDIA; or choose --backend cpu")
    try:
        found = nvml.read()
    except nvml.NvmlError as exc:
        # Some containers hide the file, so its absence alone decides nothing.
        loaded = driver_version(root)
        absent = "" if loaded else "; and no driver is loaded, /proc/driver/nvidia/version is not there"
        return _unusable(tuple(nodes), f"{exc}{absent}", _DRIVER, driver=loaded)
    return _of_devices(found, environ)


def driver_version(root: Path) -> str:
    """``580.65.06`` of ``/proc/driver/nvidia/version``; empty where there is no driver."""
    try:
        first, *_ = (root / "proc/driver/nvidia/version").read_text().splitlines() or [""]
    except OSError:
        return ""
    return next((word for word in first.split() if word[:1].isdigit() and "." in word), "")


def _no_permission(root: Path, nodes: Sequence[str]) -> str:
    closed = [name for name in ("nvidiactl", *nodes) if (root / "dev" / name).exists() and not _open_to_us(root, name)]
    return f"no permission to use {', '.join(f'/dev/{name}' for name in closed)}" if closed else ""


def _open_to_us(root: Path, name: str) -> bool:
    return os.access(root / "dev" / name, os.R_OK | os.W_OK)


def _of_devices(found: nvml.Found, environ: Mapping[str, str]) -> ProbeReport:
    driver = f"NVIDIA {found.driver}, CUDA {_dotted(found.cuda)}"
    seen, hidden = visible(found.devices, environ)
    arches = [arch_of(device.capability) for device in seen]
    names = tuple(f"{device.name} ({arch})" for device, arch in zip(seen, arches, strict=True))
    if not seen:
        return _unusable(
            (), hidden or "the driver offers no device", "set CUDA_VISIBLE_DEVICES to a device", driver=driver
        )
    usable = [arch for arch in arches if arch in SUPPORTED]
    if not usable:
        return ProbeReport(
            present=True,
            usable=False,
            devices=names,
            arch=arches[0],
            driver=driver,
            reasons=(f"found {', '.join(names)}; kernels exist for {', '.join(SUPPORTED)}",),
            remedy=f"use a device of {', '.join(SUPPORTED)}; or choose --backend cpu",
        )
    problem, remedy = _torch_problem(found)
    if problem:
        return _unusable(names, problem, remedy, driver=driver, arch=usable[0])
    return ProbeReport(present=True, usable=True, devices=names, arch=usable[0], driver=driver, score=SCORE)


def visible(devices: Sequence[nvml.Device], environ: Mapping[str, str]) -> tuple[list[nvml.Device], str]:
    """The devices that CUDA will show under ``CUDA_VISIBLE_DEVICES``, and why none is.

    As CUDA reads it: a list of indices and of beginnings of UUIDs, which ends at the first that names no device. Names
    of parts of a device (``MIG-...``) are left to CUDA.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None or "MIG-" in listed:
        return list(devices), ""
    chosen: list[nvml.Device] = []
    for word in map(str.strip, listed.split(",")):
        fits = [device for device in devices if word and device.uuid.startswith(word)]
        if word.isdigit() and int(word) < len(devices):
            fits = [devices[int(word)]]
        if len(fits) != 1:
            break
        chosen += fits
    return chosen, "" if chosen else f"CUDA_VISIBLE_DEVICES={listed!r} hides every device"


def _torch_problem(found: nvml.Found) -> tuple[str, str]:
    """Why torch could not use a device that is there, and the remedy; two empty texts where it can."""
    build = torch_build()
    if not build.version:
        return "torch is not installed", _TORCH
    if build.cuda is None:
        return f"torch {build.version} is built without CUDA", _TORCH
    if build.cuda[0] > found.cuda[0]:
        wrong = f"driver {found.driver} runs CUDA {_dotted(found.cuda)}, torch {build.version} is built for CUDA"
        return f"{wrong} {_dotted(build.cuda)}", f"update the driver; or install a torch for CUDA {found.cuda[0]}"
    return "", ""


def _absent(reason: str, remedy: str) -> ProbeReport:
    return ProbeReport(present=False, usable=False, reasons=(reason,), remedy=remedy)


def _unusable(devices: tuple[str, ...], reason: str, remedy: str, *, driver: str = "", arch: str = "") -> ProbeReport:
    return ProbeReport(
        present=True, usable=False, devices=devices, arch=arch, driver=driver, reasons=(reason,), remedy=remedy
    )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
