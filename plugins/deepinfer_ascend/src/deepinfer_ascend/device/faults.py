"""What goes wrong on an NPU, as typed errors that name the op."""

from __future__ import annotations

import torch

from deepinfer_core.errors import CapacityError, DeepInferError, DeviceLost

NO_PINNED = "Malloc pin memory failed"
NO_MEMORY = ("NPU out of memory",)
OF_DEVICE = (
    "NPU function error", "NPU error, error code is", "HCCL function error", "ACL stream synchronize failed",
    "UCE ERROR", "HBM MULTI BIT ECC ERROR", "SUSPECT MEM ERROR", "SUSPECT REMOTE ERROR", "FORCE STOP",
)  # fmt: skip
"""Words of messages of torch-npu: a test looks for each of them in its library. None was met on a device yet."""
OF_CANN = ("EZ9999", "EE9999")
"""Codes of the runtime's own reports, which come with such a message or alone."""


def typed(op: str, exc: Exception) -> DeepInferError | None:
    """The error that ``exc``, raised in ``op``, stands for; None: it is none of the device."""
    text = str(exc)
    first = text.splitlines()[0] if text else type(exc).__name__
    if NO_PINNED in text:
        return CapacityError(
            f"{op}: the host has no memory left that the device can read",
            reason=first,
            remedy="give the process more locked memory (ulimit -l), or lower --max-num-batched-tokens",
            details={"op": op, "backend": "ascend"},
        )
    if isinstance(exc, torch.OutOfMemoryError) or any(word in text for word in NO_MEMORY):
        return CapacityError(
            f"{op}: the device has no memory left",
            reason=first,
            remedy="lower --kv-memory, --max-num-batched-tokens or --max-num-seqs; or give the device to nobody else",
            details={"op": op, "backend": "ascend"},
        )
    if any(word in text for word in OF_DEVICE + OF_CANN):
        return DeviceLost(
            f"the device failed: it showed in {op}, and lies in that or in what was launched before it",
            reason=first,
            remedy="start a new process; ASCEND_LAUNCH_BLOCKING=1 names the op itself",
            details={"op": op, "backend": "ascend"},
        )
    return None
