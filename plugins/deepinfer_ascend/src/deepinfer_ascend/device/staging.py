"""A ring of blocks of host memory for copies under way: whoever takes a block may write it at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import define, field
from torch import Tensor

LEAST_BYTES = 64 << 10


@define(eq=False)
class Block:
    """:ivar event: of the copy that uses ``memory``, uint8; None: none does."""

    memory: Tensor
    event: Any = None


@define
class Ring:
    """:param allocate: gives so many bytes of host memory, uint8. :param count: copies that may be under way without
    anybody waiting. :ivar waits: how often a block was still in use when its turn came."""

    allocate: Callable[[int], Tensor]
    count: int
    waits: int = 0
    _blocks: list[Block] = field(factory=list)
    _next: int = 0

    def take(self, num_bytes: int) -> Block:
        """The next block, of at least ``num_bytes``; nobody else gets it until it is its turn again."""
        place, self._next = self._next, (self._next + 1) % self.count
        if place == len(self._blocks):
            self._blocks.append(Block(self.allocate(_size(num_bytes))))
        block = self._blocks[place]
        if block.event is not None and not block.event.query():
            self.waits += 1
            block.event.synchronize()
        block.event = None
        if block.memory.numel() < num_bytes:
            block.memory = self.allocate(_size(num_bytes))
        return block

    def close(self) -> None:
        """Give the memory back, once the copies are over."""
        for block in self._blocks:
            if block.event is not None:
                block.event.synchronize()
        self._blocks.clear()
        self._next = 0


def _size(num_bytes: int) -> int:
    return max(LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
