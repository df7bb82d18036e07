"""Kernels of ours on a device: whether they serve there, and that what their ops make is made there."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from deepinfer_ascend.jit.compiling import require
from deepinfer_ascend.jit.toolchain import toolchain

VARIABLE = "DEEPINFER_ASCEND_LOWERED"


def wanted_on_device(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether kernels serve on a device: where they can be compiled, unless the variable is 0.

    :raises VendorImportError: it is 1, and they cannot.
    """
    asked = environ.get(VARIABLE, "")
    tools = toolchain(environ)
    if asked not in ("", "0"):
        require(tools)
    return asked != "0" and not tools.problem


def on_its_device(call: Callable[..., Any]) -> Callable[..., Any]:
    """``call`` with the device of its first argument as that of every tensor that it makes."""

    @functools.wraps(call)
    def placed(first: Any, *others: Any, **options: Any) -> Any:
        device = getattr(first, "device", None)
        if not isinstance(device, torch.device) or device.type == "cpu":
            return call(first, *others, **options)
        with device:
            return call(first, *others, **options)

    return placed
