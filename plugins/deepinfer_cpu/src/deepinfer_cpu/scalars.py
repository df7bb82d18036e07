"""Numbers as 0-dim tensors of the device that they meet.

On the host torch takes one and a half microseconds less per call for them than for a Python float. On an accelerator
they keep the arithmetic: there torch divides by a number of the host by multiplying with its rounded reciprocal, and
by a tensor of the device exactly. They are made at their first use, so that a graph that is captured after a first run
finds them there.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

HOST = torch.device("cpu")


@cache
def f32(value: float, device: torch.device = HOST) -> Tensor:
    """``value`` as a 0-dim fp32 tensor. Shared: never change it."""
    return torch.full((), value, dtype=torch.float32, device=device)


@cache
def i32(value: int, device: torch.device = HOST) -> Tensor:
    """``value`` as a 0-dim int32 tensor. Shared: never change it."""
    return torch.full((), value, dtype=torch.int32, device=device)


def is_host(x: Tensor) -> bool:
    """Whether the values of ``x`` can be looked at without waiting for a device."""
    return x.device.type == "cpu"
