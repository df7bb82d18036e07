"""Host memory for copies that run by themselves: a ring of pinned blocks, each guarded by the event of its last copy.

Whoever takes a block may write it at once: the copy that used it before is over, or is waited for. With more blocks
than copies under way nothing is ever waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field
from torch import Tensor

LEAST_BYTES = 64 << 10


@define(eq=False)
class Block:
    """``memory`` uint8 ``[size]``, the same ``bytes`` as numpy, and the ``event`` of a copy that uses them."""

    memory: Tensor
    event: Any = None
    spare_event: Any = None
    """The one of a copy that is over."""
    bytes: npt.NDArray[np.uint8] = field(init=False)
    views: dict[Any, list[Any]] = field(init=False, factory=dict)
    """What somebody who fills it made of ``bytes``."""

    @bytes.default
    def _bytes(self) -> npt.NDArray[np.uint8]:
        return self.memory.numpy()


class StagingRing:
    """:param allocate: Gives so many bytes of host memory, uint8.

    :param count: Blocks; as many copies may be under way without anybody waiting.
    """

    def __init__(self, allocate: Callable[[int], Tensor], count: int) -> None:
        self._allocate = allocate
        self._blocks: list[Block | None] = [None] * count
        self._next = 0
        self.waits = 0
        """How often a block was still in use when its turn came."""

    def take(self, num_bytes: int) -> Block:
        """The next block, of at least ``num_bytes``; nobody else uses it until it is its turn again."""
        place, self._next = self._next, (self._next + 1) % len(self._blocks)
        block = self._blocks[place]
        if block is not None and block.event is not None:
            if not block.event.query():
                self.waits += 1
                block.event.synchronize()
            block.spare_event, block.event = block.event, None
        if block is None or len(block.bytes) < num_bytes:
            size = max(LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
            block = self._blocks[place] = Block(self._allocate(size))
        return block

    @property
    def num_bytes(self) -> int:
        """Host memory held."""
        return sum(len(block.bytes) for block in self._blocks if block is not None)

    def close(self) -> None:
        """Give the memory back, once the copies are over."""
        for place, block in enumerate(self._blocks):
            if block is not None and block.event is not None:
                block.event.synchronize()
            self._blocks[place] = None
