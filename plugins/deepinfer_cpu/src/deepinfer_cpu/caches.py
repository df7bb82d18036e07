"""Cache memory: one arena for blocks, one for window slots, one for compressor state.

Block arena (pools main and index share block ids; ``spec/model.md`` 4.3): one block holds, for each owner layer in
order, its index page and then its main page, each padded to 32 bytes::

    block b:  | index L2 | main L2 | index L8 | main L8 | ... | pad |    stride = lcm(128, main entry bytes)

Slot arenas (``spec/engine.md`` 3.1): one slot holds the ring of each layer in order, padded to 32 bytes, stride
lcm(32, window entry bytes). Compressor state is fp32 ``[ring, 2, width]`` for each layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from attrs import define, field, frozen
from torch import Tensor

from deepinfer_core.errors import CapacityError
from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_cpu.contracts import shape_error
from deepinfer_cpu.formats import CacheFormat, lookup

PAGE_ALIGN = 32
BLOCK_ALIGN = 128
ARENA_OF_POOL = {"main": "block", "index": "block", "swa": "swa", "state": "state"}


@define(eq=False)
class CacheView:
    """One layer's entries inside an arena.

    :ivar tensor: uint8 ``[units, page, bytes]``, or ``[units, page * bytes]`` for formats that keep a page's scales
        behind its data; fp32 ``[slots, ring, 2, width]`` for compressor state.
    :ivar block_stride: bytes from one unit to the next.
    :ivar width: values of an entry.
    """

    tensor: Tensor
    format: str
    page: int
    block_stride: int
    width: int
    layout: CacheFormat = field(init=False)
    _rows: tuple[Tensor, int] | None = field(init=False, default=None)
    _split: tuple[Tensor, Tensor] | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.layout = lookup(self.format)

    def rows(self) -> tuple[Tensor, int]:
        """All entries of a token-interleaved format as one strided matrix ``[rows, bytes]``, and the rows from a unit
        to the next; (tensor, 0) when the unit stride is no multiple of the entry size."""
        if self._rows is None:
            units, page, size = self.tensor.shape
            step = self.block_stride // size
            if self.block_stride % size or units == 0:
                self._rows = (self.tensor, 0)
            else:
                count = (units - 1) * step + page
                self._rows = (self.tensor.as_strided((count, size), (size, 1)), step)
        return self._rows

    def split(self) -> tuple[Tensor, Tensor]:
        """Data ``[units, page, data bytes]`` and scales ``[units, page, scale bytes]`` of a split-page format."""
        if self._split is None:
            data, scale = self.layout.data_bytes(self.width), self.layout.scale_bytes(self.width)
            units, offset, stride = self.tensor.shape[0], self.tensor.storage_offset(), self.block_stride
            self._split = (
                self.tensor.as_strided((units, self.page, data), (stride, data, 1), offset),
                self.tensor.as_strided((units, self.page, scale), (stride, scale, 1), offset + self.page * data),
            )
        return self._split


@frozen
class Placement:
    """Where a layer's page begins inside a unit, in bytes."""

    offset: int
    layer: CacheLayer


@frozen
class Layout:
    """One arena: where each (cache, layer) lies in a unit, and the bytes from a unit to the next."""

    stride: int
    places: Mapping[tuple[str, int], Placement]


def page_bytes(spec: CacheSpec, layer: CacheLayer) -> int:
    """Bytes of one layer's share of a unit, without padding."""
    if spec.pool == "state":
        return layer.entries * 2 * layer.width * 4
    return layer.entries * lookup(layer.format).entry_bytes(layer.width)


def layout_of(specs: Sequence[CacheSpec], arena: str) -> Layout:
    """The unit layout of ``arena`` (``block``, ``swa`` or ``state``) for all ``specs`` of its pools."""
    mine = [s for s in specs if ARENA_OF_POOL[s.pool] == arena]
    places: dict[tuple[str, int], Placement] = {}
    offset = 0
    if arena == "block":
        order = sorted(
            ((layer.layer, 0 if spec.pool == "index" else 1, spec, layer) for spec in mine for layer in spec.layers),
            key=lambda item: item[:2],
        )
        pages = [(spec, layer) for _, _, spec, layer in order]
    else:
        pages = [(spec, layer) for spec in mine for layer in spec.layers]
    rows = [1]
    for spec, layer in pages:
        places[spec.name, layer.layer] = Placement(offset, layer)
        offset += -(-page_bytes(spec, layer) // PAGE_ALIGN) * PAGE_ALIGN
        if spec.pool in ("main", "swa"):
            rows.append(lookup(layer.format).entry_bytes(layer.width))
    unit = math.lcm(BLOCK_ALIGN if arena == "block" else PAGE_ALIGN, *rows)
    return Layout(stride=-(-offset // unit) * unit, places=places)


class CpuCaches:
    """Allocated caches of all pools (``deepinfer_core.interfaces.Caches``)."""

    def __init__(self, specs: Sequence[CacheSpec], units: Mapping[str, int]) -> None:
        self._specs = {s.name: s for s in specs}
        if len(self._specs) != len(specs):
            raise shape_error("cache.alloc", "specs", "uniquely named", [s.name for s in specs])
        self._layouts = {a: layout_of(specs, a) for a in ("block", "swa", "state")}
        counts = {
            a: max((units.get(p, 0) for p, b in ARENA_OF_POOL.items() if b == a), default=0) for a in self._layouts
        }
        self._units = counts
        total = sum(counts[a] * layout.stride for a, layout in self._layouts.items())
        try:
            self._arenas = {
                a: torch.zeros(counts[a] * layout.stride, dtype=torch.uint8) for a, layout in self._layouts.items()
            }
        except RuntimeError as exc:  # torch reports a failed host allocation this way
            raise CapacityError(
                f"{total:,} bytes for the caches cannot be allocated",
                reason=str(exc).splitlines()[0],
                remedy="lower --kv-memory or --max-num-seqs",
                details={"bytes": total},
            ) from exc
        self._views: dict[tuple[str, int], CacheView] = {}

    @property
    def nbytes(self) -> int:
        """Bytes allocated over all pools."""
        return sum(a.numel() for a in self._arenas.values())

    def view(self, name: str, layer: int) -> CacheView:
        """The view of cache ``name`` at ``layer``; the same object each time."""
        key = (name, layer)
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = self._make_view(key)
        return found

    def _make_view(self, key: tuple[str, int]) -> CacheView:
        spec = self._specs.get(key[0])
        place = self._layouts[ARENA_OF_POOL[spec.pool]].places.get(key) if spec else None
        if spec is None or place is None:
            known = sorted({k for layout in self._layouts.values() for k in layout.places})
            raise shape_error("cache.view", "name, layer", f"one of {known}", key)
        arena = ARENA_OF_POOL[spec.pool]
        stride = self._layouts[arena].stride
        layer = place.layer
        if spec.pool == "state":
            state = (self._units[arena], layer.entries, 2, layer.width)
            steps = (stride // 4, 2 * layer.width, layer.width, 1)
            tensor = self._arenas[arena].view(torch.float32).as_strided(state, steps, place.offset // 4)
            return CacheView(tensor, "f32", layer.entries, stride, layer.width)
        layout = lookup(layer.format)
        size = layout.entry_bytes(layer.width)
        shape: tuple[int, ...] = (self._units[arena], layer.entries, size)
        strides: tuple[int, ...] = (stride, size, 1)
        if layout.split_page:
            shape, strides = (self._units[arena], layer.entries * size), (stride, 1)
        tensor = self._arenas[arena].as_strided(shape, strides, place.offset)
        return CacheView(tensor, layer.format, layer.entries, stride, layer.width)

    def zero(self, pool: str, units: Sequence[int]) -> None:
        """Fill units of ``pool`` with zero bytes (a block counts main and index together)."""
        matrix = self._matrix(pool)
        for unit in units:
            matrix[unit].zero_()

    def clone(self, pool: str, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy units ``src`` to ``dst``, in order."""
        matrix = self._matrix(pool)
        for src, dst in pairs:
            matrix[dst].copy_(matrix[src])

    def _matrix(self, pool: str) -> Tensor:
        if pool not in ARENA_OF_POOL:
            raise shape_error("cache", "pool", f"one of {sorted(ARENA_OF_POOL)}", pool)
        arena = ARENA_OF_POOL[pool]
        return self._arenas[arena].view(self._units[arena], self._layouts[arena].stride)
