"""The streams of one device, and what waits for what between them.

====================  =================================================================================================
stream                work
====================  =================================================================================================
compute               everything a step launches: torch's current stream of the calling thread
upload                inputs of a step, so that they travel while the step before still runs
download              results of a step, so that the host gets them while the next step already runs
capture               eager warm-up and capture of graphs
====================  =================================================================================================

Memory that one stream wrote and another reads is recorded on the reader: torch's allocator does not hand it out before
the reader is done with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_IDLE_CAPTURE: dict[int, list[torch.cuda.Stream]] = {}
"""Capture streams of closed engines, by device. Libraries and our products keep memory for each stream that they ever
ran on, tens of megabytes, so a stream serves the next engine instead of being made anew."""


class Queues:
    """The streams of ``device``."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._upload = torch.cuda.Stream(device)
        self._download = torch.cuda.Stream(device)
        self._behind = torch.cuda.Event()
        self._idle = _IDLE_CAPTURE.setdefault(device.index, [])
        self.capture = self._idle.pop() if self._idle else torch.cuda.Stream(device)

    @property
    def compute(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device)

    def record_event(self) -> torch.cuda.Event:
        """Marks the end of everything that was launched on the compute stream so far."""
        event = torch.cuda.Event()
        event.record(self.compute)
        return event

    @contextmanager
    def upload(self) -> Iterator[None]:
        """Torch calls inside go to the upload stream, which waits for nothing."""
        with torch.cuda.stream(self._upload):
            yield

    def uploaded(self, block: Tensor, spare: torch.cuda.Event | None) -> torch.cuda.Event:
        """Marks the end of an upload into ``block``, with an event that nobody uses any more if there is one."""
        event = torch.cuda.Event() if spare is None else spare
        event.record(self._upload)
        block.record_stream(self.compute)
        return event

    def go_on_behind(self, event: torch.cuda.Event) -> None:
        """What is launched on the compute stream from now on comes behind ``event``.

        One that is over already costs the device nothing; a wait in its queue is a gap of ten microseconds.
        """
        if not event.query():
            self.compute.wait_event(event)

    @contextmanager
    def download(self) -> Iterator[None]:
        """Torch calls inside go to the download stream, behind everything launched on the compute stream so far."""
        self._behind.record(self.compute)
        self._download.wait_event(self._behind)
        with torch.cuda.stream(self._download):
            yield

    def downloaded(self, spare: torch.cuda.Event | None) -> torch.cuda.Event:
        """Marks the end of downloads, with an event that nobody uses any more if there is one."""
        event = torch.cuda.Event() if spare is None else spare
        event.record(self._download)
        return event

    def synchronize(self) -> None:
        """Wait for everything, on all streams."""
        torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Nothing runs on the capture stream, and no graph that was made on it will be launched: others may have it."""
        self._idle.append(self.capture)


def pinned(num_bytes: int) -> Tensor:
    """Host memory that the device reads and writes by itself."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def wait(event: Any) -> None:
    """Let the host wait for an event of :meth:`Queues.record_event`."""
    event.synchronize()
