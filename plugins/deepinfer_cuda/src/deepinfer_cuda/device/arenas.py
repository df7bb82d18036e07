"""Cache memory on the device: the core's arenas (``deepinfer_core.caches``), the same bytes as on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from deepinfer_core.caches import ArenaCaches
from deepinfer_core.types import CacheSpec
from deepinfer_cuda.device.memory import DeviceMemory, capacity_error

REMEDY = "lower --kv-memory or --max-num-seqs, or use a device with more memory"


class CudaCaches(ArenaCaches):
    """Allocated caches of all pools. ``zero`` and ``clone`` are queued on the compute stream and wait for nothing.

    :raises CapacityError: with the bytes that were wanted, and those that are there.
    """

    def __init__(self, specs: Sequence[CacheSpec], units: Mapping[str, int], device: torch.device) -> None:
        def allocate(sizes: Mapping[str, int]) -> Mapping[str, Tensor]:
            try:
                return {arena: torch.zeros(size, dtype=torch.uint8, device=device) for arena, size in sizes.items()}
            except torch.cuda.OutOfMemoryError as exc:
                memory = DeviceMemory.of(device)
                raise capacity_error("the caches", sum(sizes.values()), memory, device, REMEDY) from exc

        super().__init__(specs, units, allocate=allocate, f32=torch.float32)
