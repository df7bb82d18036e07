"""What the backend rests on, one function for each thing, from the device files up to torch.

Each gives one line for ``deepinfer doctor ascend``; the probe takes the first problem for its reason. A machine is a
file tree (``root``), an environment, and what DCMI says, so that every broken one can be built in a test.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from deepinfer_ascend.arches import SUPPORTED, arch_of
from deepinfer_ascend.cann import LOWEST, Cann, missing_libraries
from deepinfer_ascend.container import DEVICES, MANAGERS, mount
from deepinfer_ascend.dcmi import Device
from deepinfer_ascend.driver import Driver, too_old_for
from deepinfer_ascend.jit.toolchain import Toolchain
from deepinfer_ascend.owner import Owner
from deepinfer_ascend.torch_pair import AUTOLOAD, TorchPair
from deepinfer_ascend.visible import OTHER, VARIABLE, disagreement, visible
from deepinfer_core.types import DoctorCheck

NODES = "/dev/davinci*"
LEAST_FREE = 0.1
"""Share of a device's memory that must be free for it to be of use."""
_NEEDED = f"CANN {LOWEST[0]}.{LOWEST[1]} or newer"


def nodes(root: Path) -> list[str]:
    """``davinci0``, ``davinci1``, ...: one for each device that this process was given."""
    return sorted(path.name for path in (root / "dev").glob("davinci[0-9]*"))


def node_check(root: Path, found: Driver, in_container: bool) -> DoctorCheck:
    """Device files, and why there are none."""
    names = nodes(root)
    absent = [name for name in MANAGERS if not (root / "dev" / name).exists()]
    if names and not absent:
        return _ok("nodes", ", ".join(f"/dev/{name}" for name in names))
    if names:
        listed = ", ".join(f"/dev/{name}" for name in absent)
        return _problem("nodes", f"no {listed} beside the devices", "the runtime opens it as well", DEVICES)
    what = f"no device node {NODES}"
    if in_container:
        remedy = DEVICES if found.version else f"{DEVICES} {mount(found.folder)}"
        return _problem("nodes", what, "this container was given no device", f"{remedy}, on a host that has an NPU")
    if found.version:
        remedy = f"run npu-smi info, and load or install the driver again; in a container, {DEVICES}"
        return _problem("nodes", what, f"driver {found.version} is installed, and made none", remedy)
    return _problem("nodes", what, "", "run on a host with an Ascend 950 and its driver")


def permission_check(root: Path) -> DoctorCheck:
    """Whether this user may open them."""
    files = [name for name in (*MANAGERS, *nodes(root)) if (root / "dev" / name).exists()]
    closed = [name for name in files if not os.access(root / "dev" / name, os.R_OK | os.W_OK)]
    if not closed:
        return _ok("permission", f"{len(files)} device files can be opened")
    listed = ", ".join(f"/dev/{name}" for name in closed)
    owner = Owner.of(root / "dev" / closed[0])
    return _problem("permission", f"no permission to use {listed}", owner.told, owner.remedy)


def driver_check(found: Driver, devices: Sequence[Device], error: str, in_container: bool) -> DoctorCheck:
    """The driver's version, and the devices that it tells."""
    again = "run npu-smi info on the host; where that fails too, install the NPU driver and firmware again"
    if error and not found.version:
        install = "install the NPU driver and firmware of the device"
        remedy = f"start the container with {mount(found.folder)}" if in_container else install
        return _problem("driver", error, f"no driver in {found.folder}", remedy)
    if error:
        return _problem("driver", error, f"driver {found.version} in {found.folder}", again)
    if not devices:
        return _problem("driver", "the driver offers no device", f"driver {found.version or 'unknown'}", again)
    return _ok("driver", f"{found.version}: {', '.join(device.name for device in devices)}")


def visibility_check(devices: Sequence[Device], environ: Mapping[str, str]) -> DoctorCheck:
    """The variables that hide devices."""
    apart = disagreement(environ)
    if apart:
        reason = "code for CUDA reads the one, the runtime the other"
        return _problem("visibility", apart, reason, f"unset {OTHER}, or set both to the value of {VARIABLE}")
    chosen, hidden = visible(devices, environ)
    if hidden:
        numbers = "0" if len(devices) == 1 else f"from 0 to {len(devices) - 1}"
        return _problem("visibility", hidden, "", f"set {VARIABLE} to what is here: {numbers}; or unset it")
    return _ok("visibility", f"{len(chosen)} of {len(devices)} devices are visible")


def arch_check(devices: Sequence[Device]) -> DoctorCheck:
    """Whether there are kernels for one of the devices."""
    found = [f"{device.name} ({arch_of(device.name) or 'unknown'})" for device in devices]
    if any(arch_of(device.name) in SUPPORTED for device in devices):
        return _ok("architecture", ", ".join(found))
    wrong = f"found {', '.join(found)}; kernels exist for {', '.join(SUPPORTED)}"
    return _problem("architecture", wrong, "", f"use a device of {', '.join(SUPPORTED)}")


def cann_check(found: Cann) -> DoctorCheck:
    """The version of CANN."""
    install = f"install {_NEEDED}, toolkit and ops, and source its set_env.sh"
    if found.lost:
        return _problem("CANN", f"CANN is not there: {found.lost} is no folder", "", f"unset it, or {install}")
    if found.folder is None:
        return _problem("CANN", "CANN is not installed", "", install)
    if not found.is_new_enough:
        told = f"CANN {found.version}" if found.version else "a CANN of unknown version"
        reason = f"the kernels are written for {_NEEDED}"
        return _problem("CANN", f"{told} in {found.folder} is too old", reason, install)
    return _ok("CANN", f"{found.version} in {found.folder}")


def environment_check(found: Cann) -> DoctorCheck:
    """Whether ``set_env.sh`` was sourced."""
    if found.is_sourced:
        return _ok("set_env", str(found.folder))
    what = "the environment of CANN is not set"
    return _problem("set_env", what, "ASCEND_HOME_PATH names no folder", f"source {found.set_env}, in this shell")


def fit_check(found: Driver, toolkit: Cann) -> DoctorCheck:
    """Whether the driver offers what this CANN asks of it."""
    lacking = too_old_for(found, toolkit.folder) if toolkit.folder is not None else ""
    if not lacking:
        return _ok("driver and CANN", f"driver {found.version}, CANN {toolkit.version}")
    what = f"driver {found.version} is older than CANN {toolkit.version} needs"
    return _problem(
        "driver and CANN", what, lacking, "update driver and firmware, which are the host's, or install an older CANN"
    )


def library_check(root: Path, environ: Mapping[str, str], toolkit: Cann) -> DoctorCheck:
    """The shared libraries that torch-npu links."""
    missing = missing_libraries(root, environ)
    if not missing:
        return _ok("libraries", "those of the runtime and of HCCL are found")
    reason = "in no folder of LD_LIBRARY_PATH; torch-npu links it"
    remedy = f"source {toolkit.set_env}; where it is not in that CANN either, install its toolkit again"
    return _problem("libraries", f"{', '.join(missing)} not found", reason, remedy)


def pair_check(pair: TorchPair) -> DoctorCheck:
    """torch beside the torch-npu that is made for it."""
    if pair.problem:
        return _problem("torch", pair.problem, pair.reason, pair.remedy)
    return _ok("torch", f"{pair.torch}, torch-npu {pair.torch_npu}")


def autoload_check(pair: TorchPair, toolkit: Cann, import_error: str) -> DoctorCheck:
    """Whether ``import torch`` survives that torch-npu is imported with it. ``import_error``: what it said."""
    if not import_error:
        return _ok("import torch", "torch_npu is imported with it" if pair.autoloads else "torch_npu is left alone")
    what = f"import torch fails: {import_error}"
    if not pair.autoloads:
        return _problem("import torch", what, "torch itself cannot be imported", "install torch again")
    reason = "it imports torch_npu, which needs CANN; deepinfer leaves it out, other programs with torch cannot start"
    otherwise = f"export {AUTOLOAD}=0, or pip uninstall torch-npu where there is no NPU"
    remedy = f"source {toolkit.set_env}; or {otherwise}" if toolkit.folder is not None else otherwise
    return _problem("import torch", what, reason, remedy)


def kernel_check(tools: Toolchain) -> DoctorCheck:
    """Whether kernels of ours can be compiled; without them their ops are plain ones, which are right and slow."""
    if not tools.problem:
        return _ok("kernels", f"TileLang, {tools.bisheng}, {tools.linker}")
    if not tools.has_tilelang:
        detail = f"{tools.problem}: ops without a kernel of the vendor are plain ones"
        return DoctorCheck("kernels", "note", detail, remedy=tools.remedy)
    reason = (
        "TileLang lowers our kernels, and bisheng of CANN compiles them; without it their ops are plain ones, and slow"
    )
    return _problem("kernels", tools.problem, reason, tools.remedy)


def memory_check(devices: Sequence[Device]) -> DoctorCheck:
    """Whether a visible device has memory left."""
    if not devices or not all(device.memory_bytes for device in devices):
        return DoctorCheck("memory", "note", "the driver does not tell what memory is free")
    lines = [_of_memory(device) for device in devices]
    if any(device.memory_bytes - device.used_bytes >= LEAST_FREE * device.memory_bytes for device in devices):
        return _ok("memory", "; ".join(lines))
    held = any(device.processes for device in devices)
    why = "" if held else "the driver tells of no process here that holds it"
    look = "end those processes" if held else "run npu-smi info on the host, and end what holds it"
    remedy = f"{look}; or choose another device with {VARIABLE}"
    return _problem("memory", f"no device has memory left: {'; '.join(lines)}", why, remedy)


def _of_memory(device: Device) -> str:
    free = (device.memory_bytes - device.used_bytes) >> 20
    pids = ", ".join(map(str, sorted(device.processes)))
    held = f", held by process{'es' * (len(device.processes) > 1)} {pids}" if pids else ""
    return f"device {device.number}: {free:,} of {device.memory_bytes >> 20:,} MiB free{held}"


def _ok(name: str, detail: str) -> DoctorCheck:
    return DoctorCheck(name, "ok", detail)


def _problem(name: str, detail: str, reason: str, remedy: str) -> DoctorCheck:
    return DoctorCheck(name, "problem", detail, reason=reason, remedy=remedy)
