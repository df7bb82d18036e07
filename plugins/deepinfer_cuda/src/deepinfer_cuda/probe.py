"""Which NVIDIA devices there are and whether their kernels can run, without a CUDA context.

A context in the process of a probe would take 500 MB of the device and, on a machine whose driver hangs, hang as well.
The driver's files say whether there is a driver; NVML says which devices it drives.
"""

from __future__ import annotations

from pathlib import Path

from deepinfer_core.types import HostInfo, ProbeReport
from deepinfer_cuda import nvml
from deepinfer_cuda.arches import SUPPORTED, arch_of

_REMEDY = "install the NVIDIA driver (r580 or newer for CUDA 13), or choose --backend cpu"


def probe(host: HostInfo, root: Path = Path("/")) -> ProbeReport:
    """What is found below ``root``."""
    if not host.os.startswith("linux"):
        return ProbeReport(False, False, reasons=(f"NVIDIA devices are used on linux, this is {host.os}",))
    nodes = sorted(path.name for path in (root / "dev").glob("nvidia[0-9]*"))
    driver = _driver_version(root)
    if not nodes and not driver:
        return ProbeReport(
            False, False, reasons=("no device node /dev/nvidia0 and no driver in /proc/driver/nvidia",), remedy=_REMEDY
        )
    try:
        found = nvml.devices()
    except nvml.NvmlError as exc:
        return ProbeReport(True, False, tuple(nodes), driver=driver, reasons=(str(exc),), remedy=_REMEDY)
    arches = [arch_of(device.capability) for device in found]
    names = tuple(f"{device.name} ({arch})" for device, arch in zip(found, arches, strict=True))
    usable = [arch for arch in arches if arch in SUPPORTED]
    if not usable:
        return ProbeReport(
            True,
            False,
            names,
            arch=arches[0] if arches else "",
            driver=driver,
            reasons=(f"kernels exist for {', '.join(SUPPORTED)}; found {', '.join(names) or 'no device'}",),
            remedy="use such a device, or choose --backend cpu",
        )
    return ProbeReport(True, True, names, arch=usable[0], driver=f"NVIDIA {driver}", score=100)


def _driver_version(root: Path) -> str:
    """``580.65.06`` of ``/proc/driver/nvidia/version``; empty where there is no driver."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    words = text.splitlines()[0].split() if text else []
    return next((word for word in words if word[:1].isdigit() and "." in word), "")
