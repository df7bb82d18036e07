"""Caches (``spec/kernels.md`` 1.3): their memory. Entries are written and read by kernels, or by the plain ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deepinfer_ascend.device.arenas import AscendCaches
from deepinfer_core.caches import CacheView
from deepinfer_core.types import CacheSpec


def alloc(specs: Sequence[CacheSpec], units: Mapping[str, int]) -> AscendCaches:
    """Zeroed memory on the current device for ``units[pool]`` units of each pool.

    :raises CapacityError: the device has not that much.
    """
    return AscendCaches(specs, units)


def view(caches: AscendCaches, name: str, layer: int) -> CacheView:
    """The entries of cache ``name`` at ``layer``."""
    return caches.view(name, layer)  # type: ignore[no-any-return]


OPS = {"cache.alloc": alloc, "cache.view": view}
