"""Everything of a backend that is not an op: memory, copies, events, graphs and the guard of one device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.types import CacheSpec
from deepinfer_cuda.device.arenas import CudaCaches
from deepinfer_cuda.device.downloads import Downloads
from deepinfer_cuda.device.graphs import Graphs
from deepinfer_cuda.device.memory import DeviceMemory
from deepinfer_cuda.device.queues import Queues, pinned, wait
from deepinfer_cuda.device.staging import StagingRing
from deepinfer_cuda.device.sync_guard import AllowSync, NoSync
from deepinfer_cuda.device.uploads import Uploads
from deepinfer_cuda.faults import is_alive

UPLOADS, DOWNLOADS = 12, 6
"""Copies under way at once. A step binds four records and reads two; three steps can be open."""


class DeviceRuntime:
    """The methods that the ``Backend`` protocol has besides its ops, for one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._queues = Queues(device)
        self._staging = StagingRing(pinned, UPLOADS)
        self._uploads = Uploads(device, self._queues, self._staging)
        self._downloads = Downloads(device, self._queues, StagingRing(pinned, DOWNLOADS))
        self._graphs = Graphs(self._queues)
        self._is_closed = False

    def alloc_caches(self, specs: Sequence[CacheSpec], units: Mapping[str, int]) -> CudaCaches:
        """Zeroed memory for ``units[pool]`` units of each pool. Raises CapacityError."""
        return CudaCaches(specs, units, self.device)

    def bind_inputs(self, record: Any) -> Any:
        """The same record with its arrays on the device. Never waits for it."""
        with self._lock:
            return self._uploads.bind(record)

    def prefetch(self, tensors: Iterable[Any]) -> None:
        """Begin to copy values to the host; ``to_host`` gives them later. Never waits for the device."""
        with self._lock:
            self._downloads.prefetch(tensors)

    def to_host(self, tensor: Any) -> Any:
        """The values of ``tensor`` as a numpy array; waits for what makes them, or for a copy under way."""
        with self._lock, AllowSync():
            return self._downloads.to_host(tensor)

    def record_event(self) -> Any:
        return self._queues.record_event()

    def wait(self, event: Any) -> None:
        wait(event)

    def no_sync(self) -> AbstractContextManager[object]:
        """A context in which a call that waits for the device raises HiddenSync."""
        return NoSync()

    def capture(self, call: Callable[[], object]) -> Callable[[], None]:
        """Run ``call`` once and record what it launches; the result launches it again. Raises GraphCaptureError."""
        with AllowSync():
            return self._graphs.capture(call)

    def copy_all(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """Copy ``sources`` into ``targets`` of the same shapes and types: one launch for all of one type."""
        by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for target, source in zip(targets, sources, strict=True):
            into, out_of = by_type.setdefault(target.dtype, ([], []))
            into.append(target)
            out_of.append(source)
        for into, out_of in by_type.values():
            torch._foreach_copy_(into, out_of, non_blocking=True)

    def host_like(self, tensor: Tensor) -> Tensor:
        """Pinned memory of the shape and type of ``tensor``: a captured call may copy into it."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    @property
    def memory(self) -> DeviceMemory:
        """What the device has now."""
        return DeviceMemory.of(self.device)

    def close(self) -> None:
        """Wait for the device, then give graphs, pinned memory and streams back; a lost one keeps them. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if not is_alive(self.device):
            return  # a lost device gives nothing back, and torch ends the process of whoever tries
        self._graphs.close()
        self._downloads.close()
        self._staging.close()
        self._queues.close()
