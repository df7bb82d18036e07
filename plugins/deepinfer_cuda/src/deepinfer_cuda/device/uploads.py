"""Contract records to the device: one pinned block and one copy a record, whose arrays become views into one buffer.

The buffer belongs to the record that was bound, so a record may be kept as long as anybody likes. The copy runs on a
stream of its own, beside the step before. It is mostly over when the views are made, and then nothing waits for it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import attrs
import numpy as np
import torch
from attrs import define
from torch import Tensor

from deepinfer_cuda.device.staging import Block, StagingRing

ALIGN = 16
"""Bytes between the starts of arrays: what a kernel reads at a time."""
DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(name): getattr(torch, name)
    for name in (
        "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
        "float16", "float32", "float64",
    )
}  # fmt: skip
WORDS: dict[int, type[np.generic]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


MOST_LAYOUTS = 256
"""Layouts that are remembered: sizes of prefill steps come and go."""


class Uploads:
    """Puts the arrays of a record next to each other, copies them once, and hands out views.

    :param queues: ``upload()`` and the rest as in ``Queues``.
    :param ring: Host memory; one block for each record under way.
    """

    def __init__(self, device: torch.device, queues: Any, ring: StagingRing) -> None:
        self._device, self._queues, self._ring = device, queues, ring
        self._layouts: dict[Any, _Layout] = {}

    def bind(self, record: Any) -> Any:
        """The same record with its arrays as tensors of the device (also inside dicts and lists); never waits for it.

        What lives on the device already stays as it is. Raises TypeError for an array that no tensor can hold.
        """
        kind = type(record)
        bound = kind.__new__(kind)
        found = _Found([], [], [])
        for name in _field_names(kind):
            value = getattr(record, name)
            if value is not None and type(value) is not int:
                value = self._collect(value, bound, name, found)
            setattr(bound, name, value)
        if found.arrays:
            self._move(found)
        return bound

    def _collect(self, value: Any, target: Any, key: Any, found: _Found) -> Any:
        """Note that ``target`` gets a view at ``key``; returns what is there until then."""
        kind = type(value)
        if kind is np.ndarray:
            found.arrays.append(value)
            found.forms.append((value.dtype, value.shape))
            found.places.append((target, key))
            return None
        if kind is dict:
            items = dict.fromkeys(value)
            for inner, item in value.items():
                if item is not None:
                    items[inner] = self._collect(item, items, inner, found)
            return items
        if kind is list:
            listed: list[Any] = list(value)
            for inner, item in enumerate(value):
                if item is not None:
                    listed[inner] = self._collect(item, listed, inner, found)
            return listed
        if isinstance(value, Tensor) and value.device.type != self._device.type:
            source = value.detach().contiguous()
            words = source.reshape(-1).view(torch.uint8).numpy().view(WORDS[source.element_size()])
            found.arrays.append(words.reshape(source.shape))
            found.forms.append((source.dtype, tuple(source.shape)))
            found.places.append((target, key))
            return None
        return value

    def _move(self, found: _Found) -> None:
        key = tuple(found.forms)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = _Layout(found.forms)
        block = self._ring.take(layout.num_bytes)
        for place, array in zip(layout.places_in(block), found.arrays, strict=True):
            place[...] = array
        with self._queues.upload():
            memory = torch.empty(layout.num_bytes, dtype=torch.uint8, device=self._device)
            memory.copy_(block.memory[: layout.num_bytes], non_blocking=True)
        event = block.event = self._queues.uploaded(memory, block.spare_event)
        for (target, at), view in zip(found.places, layout.views_of(memory), strict=True):
            if type(target) is dict or type(target) is list:
                target[at] = view
            else:
                setattr(target, at, view)
        self._queues.go_on_behind(event)


@define
class _Found:
    """Arrays of a record, their types and shapes, and where the view of each goes: (what holds it, at which key)."""

    arrays: list[Any]
    forms: list[tuple[Any, tuple[int, ...]]]
    places: list[tuple[Any, Any]]


class _Layout:
    """Where arrays of these types and shapes lie in a block: those of a type next to each other, so that one call makes
    all their views. Records of a size repeat, and what a size needs is worked out once."""

    def __init__(self, forms: list[tuple[Any, tuple[int, ...]]]) -> None:
        self._forms = forms
        groups: dict[torch.dtype, list[int]] = {}
        for number, (dtype, _) in enumerate(forms):
            groups.setdefault(_tensor_type(dtype), []).append(number)
        self._groups: list[tuple[torch.dtype, list[int], int, int, list[int]]] = []
        self._begins = [0] * len(forms)
        total = 0
        for dtype, numbers in groups.items():
            size, begin = dtype.itemsize, total
            sizes: list[int] = []  # elements; every second is padding
            for number in numbers:
                self._begins[number] = total
                count = math.prod(forms[number][1])
                sizes += (count, -count % (ALIGN // size))
                total += sum(sizes[-2:]) * size
            self._groups.append((dtype, numbers, begin, total, sizes))
            total = max(total, ALIGN)
        self.num_bytes = total

    def places_in(self, block: Block) -> list[Any]:
        """The arrays of the block's memory, in the order of the record."""
        found = block.views.get(self)
        if found is None:
            if len(block.views) >= MOST_LAYOUTS:
                block.views.clear()
            found = []
            for (dtype, shape), begin in zip(self._forms, self._begins, strict=True):
                kind = np.dtype(WORDS[_tensor_type(dtype).itemsize]) if isinstance(dtype, torch.dtype) else dtype
                end = begin + math.prod(shape) * kind.itemsize
                found.append(block.bytes[begin:end].view(kind).reshape(shape))
            block.views[self] = found
        return found

    def views_of(self, memory: Tensor) -> list[Tensor]:
        """The same of device memory, as tensors."""
        views: list[Any] = [None] * len(self._forms)
        for dtype, numbers, begin, end, sizes in self._groups:
            pieces = memory[begin:end].view(dtype).split_with_sizes(sizes)
            for number, piece in zip(numbers, pieces[::2], strict=True):
                shape = self._forms[number][1]
                views[number] = piece if len(shape) == 1 else piece.view(shape)
        return views


def _tensor_type(dtype: Any) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    found = DTYPES.get(dtype)
    if found is None:
        raise TypeError(f"an array of {dtype} has no tensor")
    return found


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(item.name for item in attrs.fields(kind))
