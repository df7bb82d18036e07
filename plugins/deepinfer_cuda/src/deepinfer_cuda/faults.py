"""What goes wrong on the device, as typed errors that name the op: no memory left, a device that is lost, a NaN.

The device works behind the host, so a lost device shows at whichever call comes next; the op that is named is that one,
and the text says so. The model adds the layer, and the engine the step and its requests.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.errors import CapacityError, DeepInferError, DeviceLost, NanFound

_NO_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_OF_DEVICE = ("CUDA error", "CUDA_ERROR", "CUDA:", "cuBLAS", "CUBLAS_STATUS")
SHOWN_ROWS = 8
"""Rows that a message names."""
MAY_HOLD_NAN = frozenset({"moe.experts", "index.logits", "index.block_max", "cache.load_segments"})
"""Ops whose results have places that nobody reads, and that nobody writes."""


def guarded(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with the faults of the device as typed errors that name ``op``."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except DeepInferError:
            raise
        except Exception as exc:
            error = typed(op, exc)
            if error is None:
                raise
            raise error from exc

    return call


def typed(op: str, exc: Exception) -> DeepInferError | None:
    """The error that ``exc``, raised in ``op``, stands for; None: it is none of the device."""
    text = str(exc)
    first = text.splitlines()[0] if text else type(exc).__name__
    if isinstance(exc, torch.OutOfMemoryError) or any(word in text for word in _NO_MEMORY):
        return CapacityError(
            f"{op}: the device has no memory left",
            reason=first,
            remedy="lower --kv-memory, --max-num-batched-tokens or --max-num-seqs; or give the device to nobody else",
            details={"op": op, "backend": "cuda"},
        )
    if not isinstance(exc, torch.AcceleratorError) and not any(word in text for word in _OF_DEVICE):
        return None
    # While a graph is captured, nothing may wait for the device; whoever captures runs the step op by op instead.
    if is_captured() or is_alive():
        return None
    abandon_memory()
    return DeviceLost(
        f"{op}: the device is lost",
        reason=f"{first}; it may have happened in an op before this one, which the device did later than the host",
        remedy="start a new process; with CUDA_LAUNCH_BLOCKING=1 the op that is named is the one that fails",
        details={"op": op, "backend": "cuda"},
    )


def is_captured() -> bool:
    """Whether the current stream is being captured; one of a lost device cannot even be asked."""
    try:
        return torch.cuda.is_current_stream_capturing()
    except RuntimeError:
        return False


def abandon_memory() -> None:
    """Keep every tensor of the process for ever: torch ends the process where memory is given back that a stream of a
    lost device used, and the requests are still to be told."""
    keep = ctypes.pythonapi.Py_IncRef
    keep.argtypes, keep.restype = [ctypes.py_object], None
    for thing in gc.get_objects():
        if issubclass(type(thing), Tensor | torch.UntypedStorage):
            keep(thing)


def is_alive(device: torch.device | None = None) -> bool:
    """Whether ``device`` (None: the current one) still answers; a fault that is not sticky, such as a launch that is
    refused, leaves it so."""
    try:
        torch.cuda.synchronize(device)
    except Exception:  # whatever it raises, it does not answer
        return False
    return True


def watched(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` that waits for its result and raises NanFound for a NaN in it. For finding faults: it is slow."""
    if op in MAY_HOLD_NAN:
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        for tensor in floats_of(result):
            rows = rows_with_nan(tensor)
            if rows:
                raise _nan(op, tensor, rows)
        return result

    return call


def rows_with_nan(tensor: Tensor) -> list[int]:
    """Places along the first dimension that hold a NaN."""
    if not tensor.numel():
        return []
    bad = torch.isnan(tensor)
    bad = bad.reshape(bad.shape[0], -1).any(1) if bad.dim() else bad.reshape(1)
    found: list[int] = bad.nonzero().flatten().tolist()
    return found


def floats_of(result: Any) -> Iterator[Tensor]:
    """The tensors of floating point in what an op returns: itself, or parts of a tuple."""
    for part in result if isinstance(result, tuple) else (result,):
        if isinstance(part, Tensor) and part.dtype in (torch.bfloat16, torch.float32, torch.float64):
            yield part


def wrapped(ops: Mapping[str, Callable[..., Any]], *, watch: bool) -> dict[str, Callable[..., Any]]:
    """Every op with typed errors, and with a look for NaN where that is asked for."""
    return {op: guarded(op, watched(op, function) if watch else function) for op, function in ops.items()}


def _nan(op: str, tensor: Tensor, rows: list[int]) -> NanFound:
    shown = ", ".join(map(str, rows[:SHOWN_ROWS])) + (", ..." if len(rows) > SHOWN_ROWS else "")
    return NanFound(
        f"{op} gave NaN in {len(rows)} of {tensor.shape[0] if tensor.dim() else 1} rows: {shown}",
        reason="no op before it in this step gave one",
        remedy="check the checkpoint, and compare with --numeric-mode exact or --backend cpu",
        details={"op": op, "rows": rows, "of": tensor.shape[0] if tensor.dim() else 1, "backend": "cuda"},
    )
