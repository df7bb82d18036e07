"""How cache memory is laid out, the same on every device: byte formats of entries, units of a pool, views of a layer.

A backend brings the memory and the type of fp32, nothing else (:class:`ArenaCaches`). Like all of the core this imports
no torch: tensors are what the backend allocated.
"""

from deepinfer_core.caches.arenas import ArenaCaches, CacheView
from deepinfer_core.caches.formats import FORMATS, INDEX_FORMATS, KV_FORMATS, CacheFormat
from deepinfer_core.caches.layout import ARENA_OF_POOL, Layout, Placement, layout_of, page_bytes, unit_bytes

__all__ = [
    "ARENA_OF_POOL",
    "FORMATS",
    "INDEX_FORMATS",
    "KV_FORMATS",
    "ArenaCaches",
    "CacheFormat",
    "CacheView",
    "Layout",
    "Placement",
    "layout_of",
    "page_bytes",
    "unit_bytes",
]
