"""Cache memory of all pools: one arena for blocks, one for window slots, one for compressor state.

Arenas are byte tensors of the backend's device. Nothing here waits for it: units are named by host integers, and what
is written to them is queued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field

from deepinfer_core.caches.formats import CacheFormat, lookup
from deepinfer_core.caches.layout import ARENA_OF_POOL, ARENAS, layout_error, layout_of
from deepinfer_core.types import CacheSpec

Tensor = Any
Allocate = Callable[[Mapping[str, int]], Mapping[str, Tensor]]
"""Bytes of each arena -> a zeroed uint8 tensor of each, on the device. Raises CapacityError."""


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


class ArenaCaches:
    """Allocated caches of all pools (``deepinfer_core.interfaces.Caches``).

    :param units: Units of each pool. ``main`` and ``index`` share theirs.
    :param allocate: Gives the memory.
    :param f32: What the backend's tensors call fp32.
    :raises ShapeContractError: two specs share a name.
    """

    def __init__(
        self, specs: Sequence[CacheSpec], units: Mapping[str, int], *, allocate: Allocate, f32: object
    ) -> None:
        self._specs = {s.name: s for s in specs}
        if len(self._specs) != len(specs):
            raise layout_error("cache.alloc", "specs", "uniquely named", [s.name for s in specs])
        self._f32 = f32
        self._layouts = {a: layout_of(specs, a) for a in ARENAS}
        self._units = {a: max((units.get(p, 0) for p, b in ARENA_OF_POOL.items() if b == a), default=0) for a in ARENAS}
        self._arenas = allocate({a: self._units[a] * layout.stride for a, layout in self._layouts.items()})
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
            raise layout_error("cache.view", "name, layer", f"one of {known}", key)
        arena = ARENA_OF_POOL[spec.pool]
        stride = self._layouts[arena].stride
        layer = place.layer
        if spec.pool == "state":
            state = (self._units[arena], layer.entries, 2, layer.width)
            steps = (stride // 4, 2 * layer.width, layer.width, 1)
            tensor = self._arenas[arena].view(self._f32).as_strided(state, steps, place.offset // 4)
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
        for first, count in _runs(units):
            matrix[first : first + count].zero_()

    def clone(self, pool: str, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy units ``src`` to ``dst``, in order."""
        matrix = self._matrix(pool)
        for src, dst in pairs:
            matrix[dst].copy_(matrix[src])

    def _matrix(self, pool: str) -> Tensor:
        if pool not in ARENA_OF_POOL:
            raise layout_error("cache", "pool", f"one of {sorted(ARENA_OF_POOL)}", pool)
        arena = ARENA_OF_POOL[pool]
        return self._arenas[arena].view(self._units[arena], self._layouts[arena].stride)


def _runs(units: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, count) of ids that follow each other, in ascending order: one launch for each."""
    first = count = 0
    for unit in sorted(units):
        if count and unit == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = unit, 1
    if count:
        yield first, count
