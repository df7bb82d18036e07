"""Which machines compute the same bits: what a baseline is keyed by, beside its workload."""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    from deepinfer_core.llm import LLM

PACKAGES = ("torch", "numpy", "tilelang", "deepinfer-core", "deepinfer-cpu", "deepinfer-cuda", "deepinfer-v41")
WIDER = ("amx_bf16", "avx512_bf16", "avx512_vnni", "sve_bf16", "bf16")
"""Sets of instructions beyond the vector width for which libraries have products of their own, widest first."""


@frozen
class Platform:
    """What results of a machine depend on beside the program."""

    key: str
    """Equal keys: equal bits are expected."""
    backend: str
    record: dict[str, Any]
    """The same, and what may explain a difference, for a reader."""


def platform_of(llm: LLM) -> Platform:
    """That of an engine. The packages are those that are installed."""
    import torch

    backend = llm.assembly.backend
    capabilities = backend.capabilities
    on_host = capabilities.device_type == "cpu"
    arch = instruction_set() if on_host else capabilities.arch
    versions = {name: version for name in PACKAGES if (version := _version(name))}
    name = f"{backend.name}-emulated" if capabilities.emulated else backend.name  # says nothing of a device
    key = f"{name}-{arch}-torch-{torch.__version__}"
    record = {
        "arch": arch,
        "device": processor() if on_host else _device_name(torch),
        "driver": "" if on_host else str(torch.version.cuda or torch.version.hip or ""),
        "backend": name,
        "system": sys.platform,
        "packages": {**versions, "torch": str(torch.__version__)},
        **({"emulated": True} if capabilities.emulated else {}),
    }
    return Platform(re.sub(r"[^A-Za-z0-9_.+-]", "_", key), name, record)


def instruction_set() -> str:
    """Maker and instructions of the host's processor, as torch sees them: ``x86_64-intel-avx512+amx_bf16``.

    Sums are as wide as the instructions, so their order and last bits follow from these. The maker counts because math
    libraries choose their code by it.
    """
    import torch

    found = torch.cpu.get_capabilities()
    wider = next((name for name in WIDER if found.get(name)), "")
    vector = torch.backends.cpu.get_cpu_capability().lower().replace(" ", "_")
    maker = processor().split(" ", 1)[0].lower() or "unknown"
    return f"{platform.machine()}-{maker}-{vector}" + (f"+{wider}" if wider else "")


def processor() -> str:
    """The host's processor by name, for a reader."""
    import torch

    return str(torch.cpu.get_capabilities().get("cpu_name") or platform.processor() or platform.machine())


def _device_name(torch: Any) -> str:
    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
