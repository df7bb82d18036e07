"""Devices as DCMI tells them, through ctypes: its library comes with the driver, and it creates no device context.

Newer drivers number devices (``dcmiv2_...``), older ones cards with devices on them; the newer calls are taken where
the library has them. Sizes of memory are in MiB there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import frozen

LIBRARY = "libdcmi.so"
_MOST = 64
_NAME_BYTES = 32
_SUCCESS = 0


class DcmiError(Exception):
    """DCMI cannot be loaded, or one of its calls failed; the text says which."""


@frozen
class Device:
    """One device: the name of its chip, bytes of its memory and of what is used, processes on it.

    ``memory_bytes`` 0: the driver does not tell. ``number``: its place among all that the driver tells of, by which the
    runtime's variable names it.
    """

    name: str
    memory_bytes: int = 0
    used_bytes: int = 0
    processes: tuple[int, ...] = ()
    number: int = 0


class _Chip(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char * _NAME_BYTES),
        ("name", ctypes.c_char * _NAME_BYTES),
        ("version", ctypes.c_char * _NAME_BYTES),
        ("cores", ctypes.c_uint),
        ("npu_name", ctypes.c_char * _NAME_BYTES),  # of the newer call alone; room for it does the older no harm
    )


class _Memory(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_ulonglong),
        ("frequency", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("temperature", ctypes.c_int),
        ("bandwidth", ctypes.c_uint),
    )


class _Process(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_int), ("memory", ctypes.c_ulong))


def read(driver_folder: Path = Path("/usr/local/Ascend/driver")) -> tuple[Device, ...]:
    """Every device that the driver offers to this process. Raises DcmiError."""
    library = _load(driver_folder)
    places: list[tuple[int, ...]] = []
    prefix = "dcmiv2_" if hasattr(library, "dcmiv2_init") else "dcmi_"
    _call(library, f"{prefix}init")
    places += _on_cards(library) if prefix == "dcmi_" else [(number,) for number in _listed(library)]
    return tuple(_device(library, prefix, place, number) for number, place in enumerate(places))


def _load(driver_folder: Path) -> Any:
    problem = ""
    for name in (LIBRARY, str(driver_folder / "lib64/driver" / LIBRARY), f"/usr/local/dcmi/{LIBRARY}"):
        try:
            return ctypes.CDLL(name)
        except OSError as exc:
            problem = problem or str(exc)
    raise DcmiError(f"{LIBRARY} of the driver cannot be loaded: {problem}")


def _listed(library: Any) -> list[int]:
    devices, count = (ctypes.c_int * _MOST)(), ctypes.c_int()
    _call(library, "dcmiv2_get_device_list", devices, ctypes.byref(count), _MOST)
    return list(devices[: count.value])


def _on_cards(library: Any) -> Iterator[tuple[int, int]]:
    cards, count = (ctypes.c_int * _MOST)(), ctypes.c_int()
    _call(library, "dcmi_get_card_list", ctypes.byref(count), cards, _MOST)
    for card in cards[: count.value]:
        most, mcu, cpu = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        _call(library, "dcmi_get_device_id_in_card", card, *map(ctypes.byref, (most, mcu, cpu)))
        yield from ((card, device) for device in range(most.value))


def _device(library: Any, prefix: str, place: tuple[int, ...], number: int) -> Device:
    chip, memory = _Chip(), _Memory()
    _call(library, f"{prefix}get_device_chip_info", *place, ctypes.byref(chip))
    _ask(library, f"{prefix}get_device_hbm_info", *place, ctypes.byref(memory))
    processes, count = (_Process * _MOST)(), ctypes.c_int(_MOST)
    told = any(
        _ask(library, f"{prefix}{name}", *place, processes, ctypes.byref(count))
        for name in ("get_device_proc_mem_info", "get_device_resource_info")
    )
    return Device(
        name=chip.name.decode(errors="replace"),
        memory_bytes=memory.size << 20,
        used_bytes=memory.used << 20,
        processes=tuple(process.pid for process in processes[: count.value]) if told else (),
        number=number,
    )


def _ask(library: Any, name: str, *arguments: Any) -> bool:
    """A call that not every driver has or allows; false where it gave nothing."""
    function = getattr(library, name, None)
    return function is not None and function(*arguments) == _SUCCESS


def _call(library: Any, name: str, *arguments: Any) -> None:
    function = getattr(library, name, None)
    if function is None:
        raise DcmiError(f"{LIBRARY} has no {name}: the driver is too old")
    status = function(*arguments)
    if status != _SUCCESS:
        raise DcmiError(f"{name} of DCMI failed with status {status}")
