"""Records to the device and results to the host, through pinned memory, on streams of their own.

``bind`` puts the arrays of a record behind each other and copies them at once, beside the step that still runs.
``prefetch`` begins to copy results when a step is launched; ``to_host`` then waits for that copy alone.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import numpy as np
import torch
from attrs import define
from torch import Tensor

from deepinfer_ascend.device.queues import Queues, pinned
from deepinfer_ascend.device.staging import Block, Ring

ALIGN = 32
"""Bytes between the starts of arrays: what a core's copy begins at."""
UPLOADS, DOWNLOADS = 12, 6
"""Copies under way at once: a step binds four records and reads two, and three steps can be open."""
LARGEST_STAGED = 32 << 20
"""Bytes of a tensor that still go through pinned memory; larger ones are read once, in tests and tools."""


@define(eq=False)
class _Copy:
    """``sources`` keep memory of the device alive until the copy is over."""

    sources: tuple[Tensor, Tensor]
    host: Tensor
    block: Block


class Copies:
    """Of one device. Several threads may call it."""

    def __init__(self, device: torch.device, queues: Queues, allocate: Any = pinned) -> None:
        self._device, self._queues, self._lock = device, queues, threading.Lock()
        self._uploads, self._downloads = Ring(allocate, UPLOADS), Ring(allocate, DOWNLOADS)
        self._copies: dict[int, _Copy] = {}

    def bind(self, record: Any) -> Any:
        """The same record with its arrays as tensors of the device, also those in dicts and lists. Never waits for the
        device. What lives there already stays as it is.

        :raises TypeError: an array that no tensor can hold.
        """
        arrays: list[Tensor] = []
        forms = {
            f.name: _collected(getattr(record, f.name), arrays, self._device.type) for f in attrs.fields(type(record))
        }
        with self._lock:
            views = self._upload(arrays) if arrays else iter(())
        bound = copy.copy(record)
        for name, form in forms.items():
            setattr(bound, name, _rebuilt(form, views))
        return bound

    def _upload(self, arrays: list[Tensor]) -> Iterator[Tensor]:
        begins, total = _places(arrays)
        block = self._uploads.take(total)
        for begin, array in zip(begins, arrays, strict=True):
            _view(block.memory, begin, array).copy_(array)
        with self._queues.uploading():
            memory = torch.empty(total, dtype=torch.uint8, device=self._device)
            memory.copy_(block.memory[:total], non_blocking=True)
        block.event = self._queues.uploaded(memory)
        return iter([_view(memory, begin, array) for begin, array in zip(begins, arrays, strict=True)])

    def prefetch(self, tensors: Iterable[Any]) -> None:
        """Begin to copy values to the host, behind everything launched so far. What nobody reads is forgotten when the
        ring comes round; what is no tensor of the device is left alone."""
        with self._lock:
            wanted = [t for t in tensors if self._is_mine(t) and id(t) not in self._copies]
            wanted = [t for t in wanted if 0 < t.numel() * max(t.element_size(), 4) <= LARGEST_STAGED]
            if wanted:
                self._download(wanted)

    def to_host(self, tensor: Any) -> Any:
        """The values of ``tensor`` as a numpy array of its own; bf16 comes as float32."""
        if not isinstance(tensor, Tensor):
            return np.asarray(tensor)
        if not self._is_mine(tensor) or not 0 < tensor.numel() * max(tensor.element_size(), 4) <= LARGEST_STAGED:
            return np.array(_plain(tensor).cpu().numpy())
        with self._lock:
            if id(tensor) not in self._copies:
                self._download([tensor])
            done = self._copies.pop(id(tensor))
            if done.block.event is not None:
                done.block.event.synchronize()
            return np.array(done.host.numpy())

    def _download(self, tensors: list[Tensor]) -> None:
        plain = [_plain(t) for t in tensors]  # on the compute stream: casts, and rows side by side
        begins, total = _places(plain)
        block = self._downloads.take(total)
        self._copies = {key: copy for key, copy in self._copies.items() if copy.block is not block}
        hosts = [_view(block.memory, begin, t) for begin, t in zip(begins, plain, strict=True)]
        with self._queues.downloading():
            for host, t in zip(hosts, plain, strict=True):
                host.copy_(t, non_blocking=True)
        block.event = self._queues.downloaded()
        for given, t, host in zip(tensors, plain, hosts, strict=True):
            self._copies[id(given)] = _Copy((given, t), host, block)

    def _is_mine(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and tensor.device.type == self._device.type

    def close(self) -> None:
        with self._lock:
            self._copies.clear()
            self._uploads.close()
            self._downloads.close()


@define
class _Place:
    """Where the next view goes."""


def _collected(value: Any, arrays: list[Tensor], device: str) -> Any:
    """``value`` with a place for each array that is to be copied; those are added to ``arrays``."""
    if isinstance(value, np.ndarray):
        arrays.append(torch.from_numpy(np.ascontiguousarray(value)))
        return _Place()
    if isinstance(value, Tensor):
        if value.device.type == device:
            return value
        arrays.append(value.detach().contiguous())
        return _Place()
    if isinstance(value, dict):
        return {key: _collected(item, arrays, device) for key, item in value.items()}
    if isinstance(value, list):
        return [_collected(item, arrays, device) for item in value]
    return value


def _rebuilt(form: Any, views: Iterator[Tensor]) -> Any:
    if isinstance(form, _Place):
        return next(views)
    if isinstance(form, dict):
        return {key: _rebuilt(item, views) for key, item in form.items()}
    if isinstance(form, list):
        return [_rebuilt(item, views) for item in form]
    return form


def _places(tensors: list[Tensor]) -> tuple[list[int], int]:
    """Where each begins in a block, and the bytes of all."""
    begins, total = [], 0
    for t in tensors:
        begins.append(total)
        total += -(-t.nbytes // ALIGN) * ALIGN
    return begins, max(total, ALIGN)


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).contiguous()


def _view(memory: Tensor, begin: int, like: Tensor) -> Tensor:
    return memory[begin : begin + like.nbytes].view(like.dtype).view(like.shape)
