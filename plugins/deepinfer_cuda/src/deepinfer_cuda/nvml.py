"""Devices as NVML tells them, through ctypes: its library comes with the driver, and it creates no CUDA context."""

from __future__ import annotations

import ctypes
from typing import Any

from attrs import frozen

LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96
_SUCCESS = 0


class NvmlError(Exception):
    """NVML cannot be loaded, or one of its calls failed; the text says which."""


@frozen
class Device:
    """One device: its name, UUID, compute capability, and memory in bytes."""

    name: str
    uuid: str
    capability: tuple[int, int]
    memory_bytes: int


@frozen
class Found:
    """What the driver says.

    :ivar driver: ``580.65.06``.
    :ivar cuda: newest CUDA version that the driver runs, ``(13, 0)``.
    :ivar devices: in PCI order.
    """

    driver: str
    cuda: tuple[int, int]
    devices: tuple[Device, ...]


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def read() -> Found:
    """The driver and every device that it offers to this process. Raises NvmlError."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as exc:
        raise NvmlError(f"{LIBRARY} of the driver cannot be loaded: {exc}") from None
    _call(library, "nvmlInit_v2")
    try:
        version = ctypes.c_int()
        _call(library, "nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(version))
        count = ctypes.c_uint()
        _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        return Found(
            driver=_text(library, "nvmlSystemGetDriverVersion"),
            cuda=(version.value // 1000, version.value % 1000 // 10),
            devices=tuple(_device(library, index) for index in range(count.value)),
        )
    finally:
        library.nvmlShutdown()


def _device(library: Any, index: int) -> Device:
    handle = ctypes.c_void_p()
    _call(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(library, "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    memory = _Memory()
    _call(library, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    return Device(
        name=_text(library, "nvmlDeviceGetName", handle),
        uuid=_text(library, "nvmlDeviceGetUUID", handle),
        capability=(major.value, minor.value),
        memory_bytes=memory.total,
    )


def _text(library: Any, name: str, *arguments: Any) -> str:
    buffer = ctypes.create_string_buffer(_TEXT_BYTES)
    _call(library, name, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
    return buffer.value.decode(errors="replace")


def _call(library: Any, name: str, *arguments: Any) -> None:
    try:
        function = getattr(library, name)
    except AttributeError:
        raise NvmlError(f"{LIBRARY} has no {name}: the driver is too old") from None
    status = function(*arguments)
    if status != _SUCCESS:
        explain = library.nvmlErrorString
        explain.restype = ctypes.c_char_p
        raise NvmlError(f"{name} of NVML failed: {explain(status).decode(errors='replace')}")
