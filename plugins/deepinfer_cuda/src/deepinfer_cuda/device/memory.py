"""Memory of the device: what is free, and the error of what does not fit."""

from __future__ import annotations

import torch
from attrs import frozen

from deepinfer_core.errors import CapacityError


@frozen
class DeviceMemory:
    """Bytes: ``free`` for any process, ``total`` of the device, ``held`` by torch's allocator of this process, of which
    ``used`` are in tensors."""

    free: int
    total: int
    held: int
    used: int

    @classmethod
    def of(cls, device: torch.device) -> DeviceMemory:
        free, total = torch.cuda.mem_get_info(device)
        return cls(free, total, torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device))


def capacity_error(
    what: str, num_bytes: int | None, memory: DeviceMemory, device: object, remedy: str
) -> CapacityError:
    """For memory that the device does not have. ``num_bytes``: how much was wanted, None: torch says. The caller raises
    it."""
    size = "" if num_bytes is None else f"{num_bytes:,} bytes for "
    unused = memory.held - memory.used
    return CapacityError(
        f"{size}{what} do not fit on {device}",
        reason=f"{memory.free:,} of its {memory.total:,} bytes are free; this process holds {memory.held:,}, of which "
        f"{unused:,} are unused",
        remedy=remedy,
        details={
            "bytes": num_bytes,
            "free": memory.free,
            "total": memory.total,
            "held": memory.held,
            "used": memory.used,
        },
    )
