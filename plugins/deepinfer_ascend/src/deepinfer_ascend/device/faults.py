"""What goes wrong on an NPU, as typed errors that name the op."""

from __future__ import annotations

import torch

from deepinfer_core.errors import CapacityError, DeepInferError, DeviceLost

_NO_MEMORY = ("NPU out of memory", "out of memory")
_OF_DEVICE = ("NPU error", "ACL error", "ACL stream", "error code is 5", "EZ9999", "EE9999")
"""Words of messages of torch-npu and of the runtime. Collected from their sources, and not met on a device yet."""


def typed(op: str, exc: Exception) -> DeepInferError | None:
    """The error that ``exc``, raised in ``op``, stands for; None: it is none of the device."""
    text = str(exc)
    first = text.splitlines()[0] if text else type(exc).__name__
    if isinstance(exc, torch.OutOfMemoryError) or any(word in text for word in _NO_MEMORY):
        return CapacityError(
            f"{op}: the device has no memory left",
            reason=first,
            remedy="lower --kv-memory, --max-num-batched-tokens or --max-num-seqs; or give the device to nobody else",
            details={"op": op, "backend": "ascend"},
        )
    if any(word in text for word in _OF_DEVICE):
        return DeviceLost(
            f"the device failed: it showed in {op}, and lies in that or in what was launched before it",
            reason=first,
            remedy="start a new process; ASCEND_LAUNCH_BLOCKING=1 names the op itself",
            details={"op": op, "backend": "ascend"},
        )
    return None
