"""Positions of a step and the rotary table behind them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.conformance.reference import transform as reference


def table_for(device: Any, rotary_dim: int) -> Tensor:
    """fp32 cosines and sines of 300 positions, made by no backend."""
    return _table(rotary_dim).to(device, copy=True)


def positions_for(device: Any, tokens: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """Positions below 300 in no order, some of them twice where there are many."""
    return (torch.arange(tokens) * 37 % 299).to(dtype).to(device)


@lru_cache
def _table(rotary_dim: int) -> Tensor:
    return reference.rope_table(range(300), rotary_dim, 10000.0).float()
