"""Contract records to the device: one pinned block and one copy a record, whose arrays become views into one buffer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepinfer_cuda.device.staging import StagingRing

ALIGN = 256
"""Bytes between the starts of arrays: kernels read 16 at a time, and no two arrays share a line of the cache."""
DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(name): getattr(torch, name)
    for name in (
        "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
        "float16", "float32", "float64",
    )
}  # fmt: skip


class Uploads:
    """Puts the arrays of a record next to each other, copies them once, and hands out views.

    :param queues: ``upload()`` and ``uploaded(block)`` as in ``Queues``.
    :param ring: Host memory; one block for each record under way.
    """

    def __init__(self, device: torch.device, queues: Any, ring: StagingRing) -> None:
        self._device, self._queues, self._ring = device, queues, ring

    def bind(self, record: Any) -> Any:
        """The same record with its arrays as tensors of the device (also inside dicts and lists); never waits for it.

        What lives on the device already stays as it is. Raises TypeError for an array that no tensor can hold.
        """
        bound = copy.copy(record)
        batch = _Batch(self._device)
        for name in _field_names(type(record)):
            value = getattr(record, name)
            if value is not None and not isinstance(value, int | float):
                batch.add(value, bound, name)
        if batch.places:
            self._move(batch)
        for target, key, value in batch.values:
            _put(target, key, value())
        return bound

    def _move(self, batch: _Batch) -> None:
        total = batch.num_bytes
        block = self._ring.take(total)
        for raw, offset in batch.places:
            block.bytes[offset : offset + raw.size] = raw
        with self._queues.upload():
            memory = torch.empty(total, dtype=torch.uint8, device=self._device)
            memory.copy_(block.memory[:total], non_blocking=True)
        block.event = self._queues.uploaded(memory)
        batch.memory = memory


class _Batch:
    """Arrays to move, and where the tensors go that come of them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.places: list[tuple[npt.NDArray[np.uint8], int]] = []
        self.num_bytes = 0
        self.memory: Tensor | None = None
        self.values: list[tuple[Any, Any, Callable[[], Any]]] = []
        self._typed: dict[torch.dtype, Tensor] = {}

    def add(self, value: Any, target: Any, key: Any) -> None:
        if isinstance(value, Tensor):
            if value.device.type == self._device.type:
                return
            source = value.detach().contiguous()
            raw = source.reshape(-1).view(torch.uint8).numpy()
            self.values.append((target, key, self._view_of(raw, source.dtype, tuple(source.shape))))
        elif isinstance(value, np.ndarray):
            dtype = DTYPES.get(value.dtype)
            if dtype is None:
                raise TypeError(f"an array of {value.dtype} has no tensor")
            raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            self.values.append((target, key, self._view_of(raw, dtype, value.shape)))
        elif isinstance(value, dict | list):
            items = dict(value) if isinstance(value, dict) else list(value)
            _put(target, key, items)
            for inner, item in items.items() if isinstance(items, dict) else enumerate(items):
                if item is not None and not isinstance(item, int | float):
                    self.add(item, items, inner)

    def _view_of(self, raw: npt.NDArray[np.uint8], dtype: torch.dtype, shape: tuple[int, ...]) -> Callable[[], Tensor]:
        """Note where ``raw`` goes; the view can be made once the memory is there."""
        if not raw.size:
            return lambda: torch.empty(shape, dtype=dtype, device=self._device)
        first = self.num_bytes // dtype.itemsize
        self.places.append((raw, self.num_bytes))
        self.num_bytes += -(-raw.size // ALIGN) * ALIGN
        strides = _contiguous(shape)
        return lambda: self._as(dtype).as_strided(shape, strides, first)

    def _as(self, dtype: torch.dtype) -> Tensor:
        found = self._typed.get(dtype)
        if found is None and self.memory is not None:
            found = self._typed[dtype] = self.memory.view(dtype)
        if found is None:
            raise RuntimeError("a view was asked for before its memory was there")
        return found


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _put(target: Any, key: Any, value: Any) -> None:
    if isinstance(target, dict | list):
        target[key] = value
    else:
        setattr(target, key, value)


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(item.name for item in attrs.fields(kind))
