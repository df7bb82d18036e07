"""Contract records to the device, results to the host."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor


def bind_inputs(record: Any, *, device: torch.device) -> Any:
    """The same record with every array as a tensor on ``device`` (also inside dicts and lists)."""
    bound = copy.copy(record)
    for field in attrs.fields(type(record)):
        value = getattr(record, field.name)
        if value is not None:
            setattr(bound, field.name, _bind(value, device))
    return bound


def to_host(tensor: Any) -> Any:
    """The values of ``tensor`` as a numpy array (bf16 comes as float32); waits for the device."""
    if not isinstance(tensor, Tensor):
        return np.asarray(tensor)
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


def _bind(value: Any, device: torch.device) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value).to(device)
    if isinstance(value, dict):
        return {k: _bind(v, device) for k, v in value.items()}
    if isinstance(value, list):
        return [_bind(v, device) for v in value]
    return value
