"""What depends on where tensors live: above all questions that save work where asking is free, on the host.

On an accelerator the answer would stop the host until everything launched before has run. There nothing is asked and
the general path runs; it gives the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

HOST_READS: Final = "only tensors of the host are read"
"""Tells a guard of the backend (setting ``sync_guard``) that this module reads tensors, and why it may."""


def on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def is_clear(mask: torch.Tensor) -> bool:
    """Whether no element is set, as far as that can be known here: False on a device."""
    return on_host(mask) and not bool(mask.any())


def is_full(mask: torch.Tensor) -> bool:
    """Whether every element is set, as far as that can be known here: False on a device."""
    return on_host(mask) and bool(mask.all())


def set_rows(mask: torch.Tensor) -> torch.Tensor | None:
    """Indices of the elements that are set, int64; None on a device, where they cannot be counted."""
    return mask.nonzero().squeeze(1) if on_host(mask) else None


def as_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A host tensor as an array that shares its memory."""
    array: npt.NDArray[Any] = tensor.numpy()
    return array


def below(values: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
    """``values < limits``, broadcast. numpy compares ten times as fast as torch on a CPU."""
    if on_host(values):
        return torch.from_numpy(np.less(as_numpy(values), as_numpy(limits)))
    return values < limits


def zero(values: torch.Tensor, mask: torch.Tensor) -> None:
    """Set finite ``values`` to 0 where ``mask`` is set, in place. A product costs a quarter of a fill on a CPU."""
    if on_host(values):
        array = as_numpy(values)
        np.multiply(array, ~as_numpy(mask), out=array)
    else:
        values.masked_fill_(mask, 0.0)


def upload(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """A small host array on ``device``, behind what is queued there: the host does not wait for the copy."""
    return torch.from_numpy(array).to(device, non_blocking=True)


_ALIGN: Final = 16


def upload_all(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """`upload` of several arrays, as views into one copy: on a device each copy is a gap of ten microseconds."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    return sent_together(arrays, lambda packed: upload(packed, device))


def sent_together(
    arrays: Sequence[npt.NDArray[Any]], send: Callable[[npt.NDArray[np.uint8]], torch.Tensor]
) -> list[torch.Tensor]:
    """``arrays`` behind each other, each at a multiple of 16 bytes, as tensors of what ``send`` makes of the bytes."""
    begins = np.cumsum([0, *(-(-array.nbytes // _ALIGN) * _ALIGN for array in arrays)]).tolist()
    packed = np.zeros(max(begins[-1], 1), np.uint8)
    for begin, array in zip(begins, arrays, strict=False):
        packed[begin : begin + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    memory = send(packed)
    parts = zip(begins, arrays, strict=False)
    return [memory[at : at + array.nbytes].view(_dtype(array)).view(array.shape) for at, array in parts]


def _dtype(array: npt.NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(array[:0]).dtype


def places(chosen: npt.NDArray[np.intp], count: int, device: torch.device) -> Any:
    """What picks the rows ``chosen`` of ``count``: all of them without an index."""
    return slice(None) if len(chosen) == count else upload(chosen, device)


def not_finite(values: torch.Tensor) -> torch.Tensor:
    """Which values are NaN or infinite: two launches on a device, where ``isfinite`` takes four."""
    return ~values.isfinite() if on_host(values) else (values - values) != 0


def result(tensor: torch.Tensor) -> Any:
    """What a sampler returns: an array where that costs nothing, else the tensor, which the engine fetches later."""
    return as_numpy(tensor) if on_host(tensor) else tensor
