"""Contract records to the device: one pinned block and one copy a record, whose arrays become views into one buffer.

The buffer belongs to the record that was bound, so a record may be kept as long as anybody likes. The copy runs on a
stream of its own, beside the step before. It is mostly over when the views are made, and then nothing waits for it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from deepinfer_cuda.device.staging import StagingRing

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


class Uploads:
    """Puts the arrays of a record next to each other, copies them once, and hands out views.

    :param queues: ``upload()`` and the rest as in ``Queues``.
    :param ring: Host memory; one block for each record under way.
    """

    def __init__(self, device: torch.device, queues: Any, ring: StagingRing) -> None:
        self._device, self._queues, self._ring = device, queues, ring

    def bind(self, record: Any) -> Any:
        """The same record with its arrays as tensors of the device (also inside dicts and lists); never waits for it.

        What lives on the device already stays as it is. Raises TypeError for an array that no tensor can hold.
        """
        kind = type(record)
        bound = kind.__new__(kind)
        groups: dict[Any, _Group] = {}
        for name in _field_names(kind):
            value = getattr(record, name)
            if value is not None and type(value) is not int:
                value = self._collect(value, bound, name, groups)
            setattr(bound, name, value)
        if groups:
            self._move(list(groups.values()))
        return bound

    def _collect(self, value: Any, target: Any, key: Any, groups: dict[Any, _Group]) -> Any:
        """Note that ``target`` gets a view at ``key``; returns what is there until then."""
        kind = type(value)
        if kind is np.ndarray:
            group = groups.get(value.dtype)
            if group is None:
                group = groups[value.dtype] = _Group.of(value.dtype)
            group.arrays.append((value, value.shape, target, key))
            return None
        if kind is dict:
            items = dict.fromkeys(value)
            for inner, item in value.items():
                if item is not None:
                    items[inner] = self._collect(item, items, inner, groups)
            return items
        if kind is list:
            listed: list[Any] = list(value)
            for inner, item in enumerate(value):
                if item is not None:
                    listed[inner] = self._collect(item, listed, inner, groups)
            return listed
        if isinstance(value, Tensor) and value.device.type != self._device.type:
            source = value.detach().contiguous()
            words = source.reshape(-1).view(torch.uint8).numpy().view(WORDS[source.element_size()])
            group = groups.setdefault(source.dtype, _Group(source.dtype))
            group.arrays.append((words, tuple(source.shape), target, key))
            return None
        return value

    def _move(self, groups: list[_Group]) -> None:
        total = 0
        for group in groups:
            total = group.place(total)
        block = self._ring.take(total)
        for group in groups:
            group.write(block.bytes)
        with self._queues.upload():
            memory = torch.empty(total, dtype=torch.uint8, device=self._device)
            memory.copy_(block.memory[:total], non_blocking=True)
        event = block.event = self._queues.uploaded(memory, block.spare_event)
        for group in groups:
            group.hand_out(memory)
        self._queues.go_on_behind(event)


class _Group:
    """Arrays of one type, next to each other from ``begin`` on; sizes are in elements, and every second is padding."""

    __slots__ = ("_begin", "_dtype", "_end", "_sizes", "arrays")

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.arrays: list[tuple[Any, tuple[int, ...], Any, Any]] = []
        """(array, shape, where its view goes, at which key)"""
        self._sizes: list[int] = []
        self._begin = self._end = 0

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> _Group:
        found = DTYPES.get(dtype)
        if found is None:
            raise TypeError(f"an array of {dtype} has no tensor")
        return cls(found)

    def place(self, begin: int) -> int:
        """Lay the arrays out from byte ``begin`` on; returns where the next group may begin."""
        align = ALIGN // self._dtype.itemsize
        for array, _, _, _ in self.arrays:
            count = array.size
            self._sizes += (count, -count % align)
        self._begin, self._end = begin, begin + sum(self._sizes) * self._dtype.itemsize
        return max(self._end, ALIGN)

    def write(self, block: Any) -> None:
        words = block[self._begin : self._end].view(WORDS[self._dtype.itemsize])
        at, sizes = 0, iter(self._sizes)
        for array, _, _, _ in self.arrays:
            count = next(sizes)
            words[at : at + count] = array.reshape(-1).view(words.dtype)
            at += count + next(sizes)

    def hand_out(self, memory: Tensor) -> None:
        pieces = memory[self._begin : self._end].view(self._dtype).split_with_sizes(self._sizes)
        for (_, shape, target, key), piece in zip(self.arrays, pieces[::2], strict=True):
            view = piece if len(shape) == 1 else piece.view(shape)
            if type(target) is dict or type(target) is list:
                target[key] = view
            else:
                setattr(target, key, view)


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(item.name for item in attrs.fields(kind))
