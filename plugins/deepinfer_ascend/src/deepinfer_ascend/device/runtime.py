"""Events, copies and graphs of one NPU: everything of a backend that is not an op."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch

from deepinfer_ascend.device.copies import Copies
from deepinfer_ascend.device.queues import Queues
from deepinfer_core.errors import CapacityError, DeepInferError, GraphCaptureError

ERROR_MODE = "thread_local"
"""What other threads do meanwhile, a tokenizer's or another engine's, does not end a capture."""
WITHOUT = "run with --no-graphs, which launches each step op by op"


class DeviceRuntime:
    """:param module: ``torch.npu``. :param device: the one that this backend computes on."""

    def __init__(self, module: Any, device: torch.device) -> None:
        self._module, self._device = module, device
        self._queues = Queues(module, device)
        self._copies = Copies(device, self._queues)
        self._pool: Any = None

    def bind_inputs(self, record: Any) -> Any:
        """The same record with its arrays on the device. Never waits for it."""
        return self._copies.bind(record)

    def prefetch(self, tensors: Iterable[Any]) -> None:
        """Begin to copy values to the host; ``to_host`` gives them later. Never waits for the device."""
        self._copies.prefetch(tensors)

    def to_host(self, tensor: Any) -> Any:
        """The values of ``tensor`` as a numpy array; waits for what makes them, or for a copy under way."""
        return self._copies.to_host(tensor)

    def record_event(self) -> Any:
        """Marks the end of everything that was launched so far."""
        return self._queues.record(self._queues.compute)

    def wait(self, event: Any) -> None:
        event.synchronize()

    def capture(self, call: Callable[[], object]) -> Callable[[], None]:
        """Run ``call`` once, then record it; the result launches it again.

        A graph of the runtime takes launches alone: no wait, no timer, no shape that depends on a value.

        :raises GraphCaptureError: ``call`` does something else. :raises CapacityError: there is no memory for it.
        """
        call()  # libraries make workspaces at their first use, which no capture may contain
        self._queues.synchronize()
        if self._pool is None:
            self._pool = self._module.graph_pool_handle()
        graph = self._module.NPUGraph()
        gc.collect()  # what is freed during a capture may belong to another stream
        try:
            with self._module.graph(graph, pool=self._pool, capture_error_mode=ERROR_MODE):
                call()
        except (CapacityError, torch.OutOfMemoryError):
            raise
        except Exception as exc:
            raise _refusal(exc) from exc
        replay: Callable[[], None] = graph.replay
        return replay

    def close(self) -> None:
        """Wait for the device, then give pinned memory back. Idempotent."""
        self._queues.synchronize()
        self._copies.close()
        self._pool = None


def _refusal(exc: Exception) -> GraphCaptureError:
    first = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
    reason = f"{exc.code}: {exc.what}" if isinstance(exc, DeepInferError) else f"{type(exc).__name__}: {first}"
    return GraphCaptureError(
        "a step cannot be captured in a graph of the NPU",
        reason=reason,
        remedy=WITHOUT + "; authors: nothing in it may wait for the device or depend on its values",
        details={"exception": type(exc).__name__},
    )
