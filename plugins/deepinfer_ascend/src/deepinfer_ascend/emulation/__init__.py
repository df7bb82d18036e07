"""Vendor calls on the processor, for ``--emulate``: equivalents with the libraries' signatures and layouts.

An equivalent takes what the library takes and nothing else: dtypes, strides, scale words and formats are checked, and
what the device would refuse fails here with E_SHAPE. It then unpacks its operands and computes with the plain ops of
``cpu``. So the backend's own code runs as it would on a device, and the numbers of a kernel are not imitated.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from deepinfer_ascend.contracts import misfit

_open = 0


def open_emulation() -> None:
    """A backend emulates, until :func:`close_emulation`."""
    global _open
    _open += 1


def close_emulation() -> None:
    global _open
    _open -= 1


def is_open() -> bool:
    """Whether a backend of this process emulates."""
    return _open > 0


def equivalent(name: str) -> Callable[..., Any]:
    """That of the symbol ``name`` of ``vendor/table.py``.

    :raises ShapeContractError: nothing is emulated, so that a tensor of the host has no place in a vendor call.
    """
    if not is_open():
        raise misfit(name, "tensor", "on the NPU", "a tensor of the host, and nothing is emulated")
    return _found(name)


@functools.cache
def _found(name: str) -> Callable[..., Any]:
    library, _, attribute = name.partition(".")
    called: Callable[..., Any] = getattr(importlib.import_module(f"{__name__}.{library}"), attribute)
    return called
