"""Numbers as 0-dim tensors: torch takes one and a half microseconds less per call for them than for a Python float."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=1024)
def f32(value: float) -> Tensor:
    """``value`` as a 0-dim fp32 tensor. Shared: never change it."""
    return torch.tensor(value, dtype=torch.float32)


@lru_cache(maxsize=64)
def i32(value: int) -> Tensor:
    """``value`` as a 0-dim int32 tensor. Shared: never change it."""
    return torch.tensor(value, dtype=torch.int32)
