"""Whether weights and caches fit, told before they are made; and what is told where the device says it later."""

from __future__ import annotations

import os
from pathlib import Path

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import CapacityError
from deepinfer_core.types import WeightSizes

HOST_VALUE_BYTES = 4
"""Backend ``cpu`` keeps every weight in FP32, whatever a checkpoint stores."""
GIB = 1 << 30


def require_memory(backend: str, sizes: WeightSizes, config: EngineConfig, layers: int | None) -> None:
    """Raise CapacityError where ``backend`` has less memory free than weights and caches need at least."""
    needed, free = weight_bytes(backend, sizes) + config.kv_memory, free_bytes(backend, config.device)
    if free is None or needed <= free:
        return
    raise CapacityError(
        f"the weights and caches need {needed / GIB:.1f} GiB, and {free / GIB:.1f} GiB are free on {backend}",
        reason=_parts(backend, config),
        remedy=f"{_fewer(layers)}, lower --kv-memory, or take a machine with more memory",
        details={"needed_bytes": needed, "free_bytes": free, "backend": backend},
    )


def no_memory(backend: str, sizes: WeightSizes, config: EngineConfig, layers: int | None) -> CapacityError:
    """What an engine whose memory ran out while it was made is told as: the backend keeps more than it must."""
    least = weight_bytes(backend, sizes) + config.kv_memory
    return CapacityError(
        f"{backend} has too little memory for weights and caches of at least {least / GIB:.1f} GiB",
        reason=f"it ran out while they were made; {_parts(backend, config)}, and a backend may keep more than that",
        remedy=f"{_fewer(layers)}, lower --kv-memory, or take a device with more memory",
        details={"needed_bytes": least, "backend": backend},
    )


def ran_out(error: BaseException | None) -> bool:
    """Whether memory that ran out is the cause of ``error``, through whatever it was told as."""
    import torch

    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        error = error.__cause__
    return False


def _parts(backend: str, config: EngineConfig) -> str:
    kept = "4 bytes a value" if backend == "cpu" else "as stored"
    return f"caches {config.kv_memory / GIB:.1f} GiB (--kv-memory), weights the rest, {kept}"


def _fewer(layers: int | None) -> str:
    return "run a part of it with --layers N" if layers is None else "give fewer --layers where the model allows it"


def weight_bytes(backend: str, sizes: WeightSizes) -> int:
    """Of the weights as ``backend`` keeps them; for others than ``cpu`` as stored, the least that they can be."""
    return sizes.values * HOST_VALUE_BYTES if backend == "cpu" else sizes.num_bytes


def free_bytes(backend: str, device: str | None) -> int | None:
    """Memory that is free for ``backend``; None where nobody says."""
    if backend == "cpu":
        return _host_memory()
    if backend == "cuda":
        import torch

        if torch.cuda.is_available():
            free: int = torch.cuda.mem_get_info(torch.device(device) if device else None)[0]
            return free
    return None


def _host_memory() -> int | None:
    info = Path("/proc/meminfo")
    if info.is_file():
        for line in info.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
