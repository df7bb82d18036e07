"""Cache memory: the core's arenas (``deepinfer_core.caches``) in memory of torch, on the host unless told otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from deepinfer_core.caches import ArenaCaches, CacheView
from deepinfer_core.errors import CapacityError
from deepinfer_core.types import CacheSpec
from deepinfer_cpu.scalars import HOST

__all__ = ["CacheView", "CpuCaches"]


class CpuCaches(ArenaCaches):
    """Allocated caches of all pools. Raises CapacityError."""

    def __init__(self, specs: Sequence[CacheSpec], units: Mapping[str, int], device: torch.device = HOST) -> None:
        super().__init__(specs, units, allocate=partial(_allocate, device), f32=torch.float32)


def _allocate(device: torch.device, sizes: Mapping[str, int]) -> Mapping[str, Tensor]:
    total = sum(sizes.values())
    try:
        return {arena: torch.zeros(size, dtype=torch.uint8, device=device) for arena, size in sizes.items()}
    except RuntimeError as exc:  # torch reports a failed allocation this way
        raise CapacityError(
            f"{total:,} bytes for the caches cannot be allocated",
            reason=str(exc).splitlines()[0],
            remedy="lower --kv-memory or --max-num-seqs",
            details={"bytes": total},
        ) from exc
