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
NUMPY_OF_BYTES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


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
        batch = _Batch(self._device)
        for name in _field_names(kind):
            value = getattr(record, name)
            if value is not None and not isinstance(value, int | float):
                value = batch.add(value, bound, name)
            setattr(bound, name, value)
        if batch.groups:
            self._move(batch)
        return bound

    def _move(self, batch: _Batch) -> None:
        total = batch.layout()
        block = self._ring.take(total)
        for group in batch.groups.values():
            group.write(block.bytes)
        with self._queues.upload():
            memory = torch.empty(total, dtype=torch.uint8, device=self._device)
            memory.copy_(block.memory[:total], non_blocking=True)
        event = block.event = self._queues.uploaded(memory, block.spare_event)
        for group in batch.groups.values():
            group.hand_out(memory)
        self._queues.go_on_behind(event)


class _Group:
    """Arrays of one type, next to each other from ``offset`` on; sizes are in elements, and every second is padding."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype, self._itemsize = dtype, dtype.itemsize
        self._arrays: list[tuple[np.ndarray[Any, Any], tuple[int, ...], Any, Any]] = []
        self._sizes: list[int] = []
        self.offset = 0

    def add(self, flat: np.ndarray[Any, Any], shape: tuple[int, ...], target: Any, key: Any) -> None:
        self._arrays.append((flat, shape, target, key))
        count = len(flat)
        self._sizes += (count, -count % (ALIGN // self._itemsize))

    @property
    def num_bytes(self) -> int:
        return sum(self._sizes) * self._itemsize

    def write(self, block: np.ndarray[Any, Any]) -> None:
        words = block[self.offset : self.offset + self.num_bytes].view(NUMPY_OF_BYTES[self._itemsize])
        at = 0
        for i, (flat, _, _, _) in enumerate(self._arrays):
            count = self._sizes[2 * i]
            words[at : at + count] = flat
            at += count + self._sizes[2 * i + 1]

    def hand_out(self, memory: Tensor) -> None:
        pieces = memory[self.offset : self.offset + self.num_bytes].view(self._dtype).split_with_sizes(self._sizes)
        for (_, shape, target, key), piece in zip(self._arrays, pieces[::2], strict=True):
            _put(target, key, piece if len(shape) == 1 else piece.view(shape))


class _Batch:
    """The arrays of one record, by type."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.groups: dict[torch.dtype, _Group] = {}

    def add(self, value: Any, target: Any, key: Any) -> Any:
        """Note that ``target`` gets a view at ``key``; returns what is there until then."""
        if isinstance(value, np.ndarray):
            dtype = DTYPES.get(value.dtype)
            if dtype is None:
                raise TypeError(f"an array of {value.dtype} has no tensor")
            self._note(value.reshape(-1).view(NUMPY_OF_BYTES[value.itemsize]), dtype, value.shape, target, key)
        elif isinstance(value, Tensor):
            if value.device.type == self._device.type:
                return value
            source = value.detach().contiguous()
            flat = source.reshape(-1).view(torch.uint8).numpy().view(NUMPY_OF_BYTES[source.element_size()])
            self._note(flat, source.dtype, tuple(source.shape), target, key)
        elif isinstance(value, dict | list):
            items: Any = dict(value) if isinstance(value, dict) else list(value)
            for inner, item in items.items() if isinstance(items, dict) else enumerate(items):
                if item is not None and not isinstance(item, int | float):
                    items[inner] = self.add(item, items, inner)
            return items
        else:
            return value
        return None

    def _note(self, flat: Any, dtype: torch.dtype, shape: tuple[int, ...], target: Any, key: Any) -> None:
        group = self.groups.get(dtype)
        if group is None:
            group = self.groups[dtype] = _Group(dtype)
        group.add(flat, shape, target, key)

    def layout(self) -> int:
        """Place the groups one behind the other; returns the bytes of all."""
        total = 0
        for group in self.groups.values():
            group.offset = total
            total += -(-group.num_bytes // ALIGN) * ALIGN
        return max(total, ALIGN)


def _put(target: Any, key: Any, value: Any) -> None:
    if isinstance(target, dict | list):
        target[key] = value
    else:
        setattr(target, key, value)


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(item.name for item in attrs.fields(kind))
