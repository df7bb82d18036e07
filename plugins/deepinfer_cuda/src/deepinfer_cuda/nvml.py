"""Devices as NVML tells them, through ctypes: its library comes with the driver, and it creates no CUDA context."""

from __future__ import annotations

import ctypes
from typing import Any

from attrs import frozen

_LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96


class NvmlError(Exception):
    """NVML cannot be loaded, or one of its calls failed; the text says which."""


@frozen
class Device:
    """One device: its name, compute capability, and memory in bytes."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def devices() -> list[Device]:
    """Every device that the driver offers to this process. Raises NvmlError."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as exc:
        raise NvmlError(f"{_LIBRARY} of the driver cannot be loaded: {exc}") from None
    _call(library, "nvmlInit_v2")
    try:
        count = ctypes.c_uint()
        _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [_device(library, index) for index in range(count.value)]
    finally:
        library.nvmlShutdown()


def _device(library: Any, index: int) -> Device:
    handle = ctypes.c_void_p()
    _call(library, "nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _call(library, "nvmlDeviceGetName", handle, name, _NAME_BYTES)
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(library, "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    memory = _Memory()
    _call(library, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    return Device(name.value.decode(errors="replace"), (major.value, minor.value), memory.total)


def _call(library: Any, name: str, *arguments: Any) -> None:
    status = getattr(library, name)(*arguments)
    if status:
        text = library.nvmlErrorString
        text.restype = ctypes.c_char_p
        told = text(status)
        raise NvmlError(f"{name} of NVML failed: {told.decode() if told else status}")
