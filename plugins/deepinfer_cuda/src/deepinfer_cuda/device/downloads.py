"""Results to the host, through pinned memory on a stream of their own.

``prefetch`` starts the copies when a step is launched; ``to_host`` then finds them done, and waits for nothing that was
launched behind the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from attrs import define
from torch import Tensor

from deepinfer_cuda.device.staging import Block, StagingRing

ALIGN = 64
LARGEST_STAGED = 32 << 20
"""Bytes of a tensor that still go through pinned memory; larger ones are read once, in tests and tools."""


@define(eq=False)
class _Copy:
    """``sources`` keep the memory of the device alive until the copy is over."""

    sources: tuple[Tensor, Tensor]
    host: Tensor
    block: Block
    event: Any


class Downloads:
    """:param queues: ``download()`` and ``downloaded()`` as in ``Queues``.

    :param ring: Host memory; one block for each call of ``prefetch`` whose values are not yet read.
    """

    def __init__(self, device: torch.device, queues: Any, ring: StagingRing) -> None:
        self._device, self._queues, self._ring = device, queues, ring
        self._copies: dict[int, _Copy] = {}
        self._of_block: dict[int, list[int]] = {}

    def prefetch(self, tensors: Iterable[Any]) -> None:
        """Begin to copy values to the host, behind everything launched so far. Never waits for the device.

        ``to_host`` of the same tensors gives these values. What is no tensor of the device is left alone. Copies that
        nobody reads are forgotten when the ring comes round.
        """
        wanted = [t for t in tensors if self._is_mine(t) and id(t) not in self._copies]
        wanted = [t for t in wanted if 0 < _host_bytes(t) <= LARGEST_STAGED]
        if wanted:
            self._start(wanted)

    def to_host(self, tensor: Any) -> Any:
        """The values of ``tensor`` as a numpy array of its own (bf16 comes as float32)."""
        if not isinstance(tensor, Tensor):
            return np.asarray(tensor)
        if not self._is_mine(tensor) or not tensor.numel():
            return np.array(_plain(tensor).cpu().numpy())
        if _host_bytes(tensor) > LARGEST_STAGED:
            return _plain(tensor).cpu().numpy()
        if id(tensor) not in self._copies:
            self._start([tensor])
        done = self._copies.pop(id(tensor))
        done.event.synchronize()
        return np.array(done.host.numpy())

    def _start(self, tensors: list[Tensor]) -> None:
        plain = [_plain(t) for t in tensors]  # on the compute stream: casts, and rows side by side
        offsets, total = [], 0
        for t in plain:
            offsets.append(total)
            total += -(-t.nbytes // ALIGN) * ALIGN
        block = self._ring.take(total)
        self._forget(block)
        with self._queues.download():
            hosts = [_view(block, at, t) for at, t in zip(offsets, plain, strict=True)]
            for host, t in zip(hosts, plain, strict=True):
                host.copy_(t, non_blocking=True)
        block.event = event = self._queues.downloaded(block.spare_event)
        for given, t, host in zip(tensors, plain, hosts, strict=True):
            self._copies[id(given)] = _Copy((given, t), host, block, event)
        self._of_block[id(block)] = [id(t) for t in tensors]

    def _forget(self, block: Block) -> None:
        for key in self._of_block.pop(id(block), ()):
            if key in self._copies and self._copies[key].block is block:
                del self._copies[key]

    def _is_mine(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and tensor.device.type == self._device.type

    def close(self) -> None:
        self._copies.clear()
        self._of_block.clear()
        self._ring.close()


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).contiguous()


def _host_bytes(tensor: Tensor) -> int:
    return tensor.numel() * (4 if tensor.dtype == torch.bfloat16 else tensor.element_size())


def _view(block: Block, offset: int, like: Tensor) -> Tensor:
    return block.memory[offset : offset + like.nbytes].view(like.dtype).view(like.shape)
