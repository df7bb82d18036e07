"""Cache memory as bytes on the host: where the entries of a view lie, and everything around them.

A store is right if the whole storage behind the view is, byte for byte, what it was before with the new entries in
their places. That covers the bytes behind a page, other layers in the same unit, padding, and other units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import define
from torch import Tensor

from deepinfer_core.conformance.failures import fail
from deepinfer_core.conformance.reference import cache
from deepinfer_core.types import CacheLayer, CacheSpec

MAIN, INDEX, SWA, STATE = "main_kv", "index_k", "swa", "state"
UNITS = 5
LAYERS = (2, 20)


def storage_of(view: Any) -> Tensor:
    """All bytes behind ``view``, as a flat uint8 tensor on its device that shares the memory."""
    tensor: Tensor = view.tensor
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((count,), (1,), 0).view(torch.uint8)


def specs(kv: str, index: str, *, width: int = 512, index_width: int = 128, block: int = 128, ring: int = 134,
          state_ring: int = 7) -> list[CacheSpec]:  # fmt: skip
    """Two owner layers of every pool, of ratio 2 and 1: their pages lie in turn in each block, of different sizes."""
    pages = {layer: block // ratio for layer, ratio in zip(LAYERS, (2, 1), strict=True)}
    return [
        CacheSpec(MAIN, "main", [CacheLayer(n, page, kv, width) for n, page in pages.items()]),
        CacheSpec(INDEX, "index", [CacheLayer(n, page, index, index_width) for n, page in pages.items()]),
        CacheSpec(SWA, "swa", [CacheLayer(n, ring, kv if kv in ("bf16", "f32") else "v41", width) for n in LAYERS]),
        CacheSpec(STATE, "state", [CacheLayer(n, state_ring, "f32", width) for n in LAYERS]),
    ]


@define(eq=False)
class Arena:
    """A host copy of everything behind a view of entries of ``width`` values."""

    view: Any
    raw: Tensor
    layout: cache.EntryLayout
    width: int
    units: int

    @classmethod
    def of(cls, view: Any, width: int, *, fill: Tensor | None = None) -> Arena:
        """Of ``view``; with ``fill``, a pattern of bytes that is repeated over the whole storage first."""
        storage = storage_of(view)
        if fill is not None:
            count = -(-storage.numel() // fill.numel())
            storage.copy_(fill.repeat(count)[: storage.numel()])
        return cls(view, storage.cpu().clone(), cache.LAYOUTS[view.format], width, view.tensor.shape[0])

    @classmethod
    def poisoned(cls, view: Any, width: int) -> Arena:
        """With bytes that are NaN in every format that has one, and a huge number in the others."""
        return cls.of(view, width, fill=torch.full((32,), 0xFF, dtype=torch.uint8))

    @property
    def slots(self) -> int:
        """Entries of all units."""
        return self.units * int(self.view.page)

    def addresses(self, slots: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Byte numbers in the storage of data ``[n, *]`` and scales ``[n, *]`` of entries at ``slots``."""
        slot = torch.as_tensor(slots, dtype=torch.int64)
        page = int(self.view.page)
        unit, entry = slot // page, slot % page
        data, scale = self.layout.data_bytes(self.width), self.layout.scale_bytes(self.width)
        begin = self.view.tensor.storage_offset() * self.view.tensor.element_size() + unit * int(self.view.block_stride)
        if self.layout.page_wide:
            first, second = begin + entry * data, begin + page * data + entry * scale
        else:
            first = begin + entry * (data + scale)
            second = first + data
        return first[:, None] + torch.arange(data), second[:, None] + torch.arange(scale)

    def put(self, slots: Sequence[int] | Tensor, data: Tensor, scale: Tensor) -> None:
        """Write entries into the host copy. A slot of -1 is left out."""
        keep = torch.as_tensor(slots, dtype=torch.int64) >= 0
        at, at_scale = self.addresses(torch.as_tensor(slots, dtype=torch.int64)[keep])
        self.raw[at] = data[keep]
        self.raw[at_scale] = scale[keep]

    def values(self, slots: Sequence[int] | Tensor) -> Tensor:
        """fp64 ``[n, width]`` of entries of the host copy."""
        at, at_scale = self.addresses(slots)
        return cache.decode(self.raw[at], self.raw[at_scale], self.layout, self.width)

    def write(self, slots: Sequence[int] | Tensor, kv: Tensor) -> None:
        """Encode rows into the host copy (:meth:`put`)."""
        self.put(slots, *cache.encode(kv, self.layout))

    def upload(self) -> None:
        """Make the device's memory equal to the host copy."""
        storage_of(self.view).copy_(self.raw)

    def expect(self, op: str, **facts: object) -> None:
        """Raise ConformanceFailure unless the device's memory equals the host copy, whatever byte it is."""
        __tracebackhide__ = True
        now = storage_of(self.view).cpu()
        wrong = now != self.raw
        if not bool(wrong.any()):
            return
        place = int(wrong.int().argmax())
        fail(
            "the memory of the cache is not what it has to be",
            op=op,
            **facts,
            format=self.view.format,
            byte=place,
            where=self._where(place),
            got=int(now[place]),
            expected=int(self.raw[place]),
            differing=f"{int(wrong.sum())} of {wrong.numel()} bytes",
        )

    def _where(self, byte: int) -> str:
        """What lies at a byte of the storage."""
        for name, addresses in zip(("data", "scales"), self.addresses(range(self.slots)), strict=True):
            found = (addresses == byte).nonzero()
            if len(found):
                return f"{name} of slot {int(found[0, 0])}"
        return "no entry of this layer"


def random_entries(slots: int, layout: cache.EntryLayout, width: int, generator: torch.Generator) -> Tensor:
    """bf16 ``[slots, width]`` of values that differ in size from entry to entry and from group to group."""
    values = torch.randn(slots, width, generator=generator, dtype=torch.float64)
    size = torch.exp2(torch.randint(-3, 4, (slots, max(1, width // 32), 1), generator=generator).double())
    grouped = values.reshape(slots, size.shape[1], width // size.shape[1]) * size
    return grouped.reshape(slots, width).to(layout.dtype if layout.element == "raw" else torch.bfloat16)
