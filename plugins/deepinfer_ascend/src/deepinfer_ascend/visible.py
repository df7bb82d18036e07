"""Which devices this process may use: the variable of the Ascend runtime, and the one that code for CUDA sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

VARIABLE, OTHER = "ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
Device = TypeVar("Device")


def disagreement(environ: Mapping[str, str]) -> str:
    """That both variables are set and name different devices; empty where they agree or one is not set.

    Code written for CUDA reads the one, the Ascend runtime the other: a process group would then count devices that it
    does not use.
    """
    ours, theirs = environ.get(VARIABLE), environ.get(OTHER)
    if ours is None or theirs is None or _words(ours) == _words(theirs):
        return ""
    return f"{VARIABLE}={ours} and {OTHER}={theirs} name different devices"


def visible(devices: Sequence[Device], environ: Mapping[str, str]) -> tuple[list[Device], str]:
    """The devices that the runtime will show, and why none is. The list ends at the first word that names no device."""
    listed = environ.get(VARIABLE)
    if listed is None:
        return list(devices), ""
    chosen: list[Device] = []
    for word in _words(listed):
        if not word.isdecimal() or int(word) >= len(devices):
            break
        chosen.append(devices[int(word)])
    return chosen, "" if chosen else f"{VARIABLE}={listed!r} hides every device"


def _words(listed: str) -> list[str]:
    return [word.strip() for word in listed.split(",")]
