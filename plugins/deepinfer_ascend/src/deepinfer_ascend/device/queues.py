"""The streams of one NPU, and what waits for what: steps on the compute stream, copies on a stream for each direction.

Memory that one stream wrote and another reads is recorded on the reader: the allocator does not hand it out before the
reader is done with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

NOT_PINNED = ("507910", "507911")
"""Codes with which the runtime refuses to register memory of the host: not supported, and registered already."""


class Queues:
    """:param module: ``torch.npu``."""

    def __init__(self, module: Any, device: torch.device) -> None:
        self._module, self._device = module, device
        self._upload, self._download = module.Stream(device), module.Stream(device)

    @property
    def compute(self) -> Any:
        """Torch's current stream of the calling thread: everything that a step launches."""
        return self._module.current_stream(self._device)

    def record(self, stream: Any) -> Any:
        """An event behind everything that was launched on ``stream`` so far. Without timing, as graphs need it."""
        event = self._module.Event()
        event.record(stream)
        return event

    @contextmanager
    def uploading(self) -> Iterator[None]:
        """Torch calls inside go to the upload stream, which waits for nothing."""
        with self._module.stream(self._upload):
            yield

    def uploaded(self, memory: Tensor) -> Any:
        """The event behind an upload into ``memory``; what the compute stream launches from now on comes later."""
        event, compute = self.record(self._upload), self.compute
        memory.record_stream(compute)
        if not event.query():
            compute.wait_event(event)
        return event

    @contextmanager
    def downloading(self) -> Iterator[None]:
        """Torch calls inside go to the download stream, behind everything launched on the compute stream so far."""
        self._download.wait_event(self.record(self.compute))
        with self._module.stream(self._download):
            yield

    def downloaded(self) -> Any:
        return self.record(self._download)

    def synchronize(self) -> None:
        """Wait for everything, on all streams."""
        self._module.synchronize(self._device)


def pinned(num_bytes: int) -> Tensor:
    """Host memory that the device reads and writes by itself; where the runtime pins none, memory that it copies."""
    try:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as exc:
        if not any(code in str(exc) for code in NOT_PINNED):
            raise
        return torch.empty(num_bytes, dtype=torch.uint8)
