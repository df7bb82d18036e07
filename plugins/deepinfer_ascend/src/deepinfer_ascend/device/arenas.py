"""Cache memory: the core's arenas (``deepinfer_core.caches``) on the device, or on the host under emulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from deepinfer_ascend import emulation
from deepinfer_core.caches import ArenaCaches
from deepinfer_core.errors import CapacityError
from deepinfer_core.types import CacheSpec


class AscendCaches(ArenaCaches):
    """Allocated caches of all pools.

    :raises CapacityError: with the bytes that were wanted.
    """

    def __init__(self, specs: Sequence[CacheSpec], units: Mapping[str, int]) -> None:
        super().__init__(specs, units, allocate=_allocate, f32=torch.float32)


def _allocate(sizes: Mapping[str, int]) -> Mapping[str, Tensor]:
    device = torch.device("cpu")
    if not emulation.is_open():
        device = torch.device("npu", torch.get_device_module("npu").current_device())
    try:
        return {arena: torch.zeros(size, dtype=torch.uint8, device=device) for arena, size in sizes.items()}
    except RuntimeError as exc:  # what torch and torch_npu say of memory that is not there
        total = sum(sizes.values())
        raise CapacityError(
            f"{total:,} bytes for the caches cannot be allocated",
            reason=str(exc).splitlines()[0],
            remedy="lower --kv-memory or --max-num-seqs, or use a device with more memory",
            details={"bytes": total},
        ) from exc
