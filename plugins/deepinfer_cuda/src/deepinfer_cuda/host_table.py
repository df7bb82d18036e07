"""Tables that stay in the host's memory and are read by kernels over the bus: no row is copied that nobody asks for."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from deepinfer_core.errors import CapacityError

MAPPED = 2
"""``cudaHostRegisterMapped``: the device reads the memory at an address of its own."""


@frozen(eq=False)
class HostTable:
    """A table as ``engram.fetch`` takes it. ``codes``, ``scales``: the host's memory as the device addresses it;
    ``held``: the host tensors that own it."""

    codes: Tensor
    scales: Tensor | None
    held: tuple[Tensor, ...]


def host_table(codes: Tensor, scales: Tensor | None, device: torch.device) -> HostTable:
    """Make host tensors readable by ``device``. Memory that is not page-locked yet is locked where it lies.

    :raises CapacityError: the system does not lock that much memory.
    """
    held = tuple(locked(t.contiguous()) for t in (codes, scales) if t is not None)
    seen = [on_device(host, device).view(host.dtype) for host, _ in held]
    table = HostTable(seen[0], seen[1] if scales is not None else None, tuple(host for host, _ in held))
    for host, registered in held:
        if registered:
            weakref.finalize(table, _release, host)
    return table


def locked(host: Tensor) -> tuple[Tensor, bool]:
    """``host`` in page-locked memory: itself, or a copy where its pages cannot be locked (a file's mapping); and
    whether they were locked here."""
    if host.is_pinned() or not host.numel():
        return host, False
    failed = torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.nbytes, MAPPED)
    if int(failed) == 0:
        return host, True
    try:
        return host.pin_memory(), False
    except RuntimeError as exc:
        raise CapacityError(
            f"{host.nbytes / 2**30:.1f} GiB of the host's memory cannot be locked for the device",
            reason=str(exc).splitlines()[0],
            remedy="raise the limit of locked memory (ulimit -l), or keep the table on the device",
            details={"bytes": host.nbytes},
        ) from exc


def _release(host: Tensor) -> None:
    """Unlock the pages of ``host``, which is alive until here."""
    torch.cuda.cudart().cudaHostUnregister(host.data_ptr())


class _Mapped:
    """The interface by which torch takes memory that it did not allocate."""

    def __init__(self, host: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(host.shape),
            "typestr": "|u1",
            "data": (host.data_ptr(), False),
            "strides": None,
            "version": 2,
        }


def on_device(host: Tensor, device: torch.device) -> Tensor:
    """Page-locked memory as bytes of ``device``. The address is the same on both sides (unified addressing)."""
    flat: Any = host.view(torch.uint8)
    if not math.prod(flat.shape):
        return torch.empty(flat.shape, dtype=torch.uint8, device=device)
    return torch.as_tensor(_Mapped(flat), device=device)
