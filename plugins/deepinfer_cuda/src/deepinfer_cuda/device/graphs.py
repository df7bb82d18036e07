"""CUDA graphs: what a call launches, recorded once and launched again by one call of the driver.

All graphs of a backend share one memory pool and are captured on one private stream. A graph reads and writes fixed
addresses: who captures a call keeps its inputs and results in memory of its own.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch

from deepinfer_core.errors import CapacityError, DeepInferError, GraphCaptureError
from deepinfer_cuda.device.memory import DeviceMemory, capacity_error
from deepinfer_cuda.device.queues import Queues

ERROR_MODE = "thread_local"
"""What other threads do meanwhile, a tokenizer's or another engine's, does not end a capture."""
WITHOUT = "run with --no-graphs, which launches each step op by op"


class Graphs:
    """Captures calls of one device."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._pool: Any = None
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        """Those that somebody can still launch."""

    def capture(self, call: Callable[[], object]) -> Callable[[], None]:
        """Run ``call`` once, then record it. Returns what launches it again, with the addresses of now; its
        memory is given back when nobody holds that any more.

        The eager run comes first because libraries create workspaces and kernels are compiled at first use, which no
        capture may contain. It is a run like any other: its results are good. The capture itself runs nothing.

        :raises GraphCaptureError: ``call`` waits for the device, or does something else that cannot be recorded.
        :raises CapacityError: the device has no memory left for it.
        """
        device, stream = self._queues.device, self._queues.capture
        compute = self._queues.compute
        stream.wait_stream(compute)
        try:
            with torch.cuda.stream(stream):
                call()
                graph = self._record(call)
        except torch.cuda.OutOfMemoryError as exc:
            what = "the memory of a captured step does"
            raise capacity_error(
                what, None, DeviceMemory.of(device), device, f"lower --kv-memory, or {WITHOUT}"
            ) from exc
        finally:
            compute.wait_stream(stream)
        self._graphs.add(graph)
        return graph.replay

    def _record(self, call: Callable[[], object]) -> torch.cuda.CUDAGraph:
        if self._pool is None or not self._graphs:  # with its last graph a pool is gone, and torch refuses its name
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with _no_collection():
            try:
                graph.capture_begin(pool=self._pool, capture_error_mode=ERROR_MODE)
            except RuntimeError as exc:
                self._clean_up()
                raise _refusal(exc) from exc
            try:
                call()
            except Exception as exc:
                self._leave(graph)
                if isinstance(exc, torch.cuda.OutOfMemoryError | CapacityError):
                    raise
                raise _refusal(exc) from exc
            try:
                graph.capture_end()
            except RuntimeError as exc:
                self._clean_up()
                raise _refusal(exc) from exc
        return graph

    def _leave(self, graph: torch.cuda.CUDAGraph) -> None:
        """Leave a capture that has failed; its own complaint says less than what made it fail."""
        try:
            graph.capture_end()
        except RuntimeError:
            self._clean_up()

    def _clean_up(self) -> None:
        """What ``capture_begin`` and ``capture_end`` leave undone where they raise: the stream goes on allocating from
        the pool and holds it, and the random generators believe that they are captured. Later captures take another
        pool; one that records next to nothing puts the generators right."""
        index, pool, self._pool = self._queues.device.index, self._pool, None
        try:
            torch._C._cuda_endAllocateToPool(index, pool)
        except RuntimeError:
            pass  # a capture that failed before it came to the pool holds nothing of it
        else:
            torch._C._cuda_releasePool(index, pool)
        nothing, scrap = torch.cuda.CUDAGraph(), torch.zeros(1, device=self._queues.device)
        nothing.capture_begin(capture_error_mode=ERROR_MODE)
        scrap.zero_()
        nothing.capture_end()
        nothing.reset()

    @property
    def count(self) -> int:
        """Graphs captured and not given back."""
        return len(self._graphs)

    def close(self) -> None:
        """Give all graphs and their memory back. Nothing may launch one afterwards."""
        for graph in list(self._graphs):
            graph.reset()
        self._graphs.clear()
        self._pool = None


@contextmanager
def _no_collection() -> Iterator[None]:
    """The collector may free what belongs to other streams, and the driver refuses that during a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _refusal(exc: Exception) -> GraphCaptureError:
    reason = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
    if isinstance(exc, DeepInferError):
        reason = f"{exc.code}: {exc.what}"
    return GraphCaptureError(
        "a step cannot be captured in a CUDA graph",
        reason=f"{type(exc).__name__}: {reason}",
        remedy=WITHOUT + "; authors: nothing in it may wait for the device or depend on its values",
        details={"exception": type(exc).__name__},
    )
