"""Builds the inputs of one step with every parameter neutral unless a test says otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from deepinfer_contracts import SamplerInputs, SamplerOutput
from deepinfer_samplers.canonical import CanonicalSampler


def sampler_inputs(n: int, **given: Any) -> SamplerInputs:
    """``SamplerInputs`` of ``n`` requests, one row each. Scalars in ``given`` are repeated for all requests."""
    columns: dict[str, tuple[type, float]] = {
        "temperature": (np.float32, 1.0),
        "top_p": (np.float32, 1.0),
        "min_p": (np.float32, 0.0),
        "repetition_penalty": (np.float32, 1.0),
        "presence_penalty": (np.float32, 0.0),
        "frequency_penalty": (np.float32, 0.0),
        "top_k": (np.int32, -1),
        "seed": (np.uint64, 0),
        "sample_pos": (np.int32, 0),
    }
    fields: dict[str, Any] = {"selected_rows": np.arange(n, dtype=np.int32)}
    for name, (dtype, default) in columns.items():
        value = given.pop(name, default)
        fields[name] = np.broadcast_to(np.asarray(value, dtype=dtype), (n,)).copy()
    for name, value in given.items():
        fields[name] = np.asarray(value, dtype=np.int32) if isinstance(value, list) else value
    return SamplerInputs(**fields)


def sample(logits: Any, vocab_size: int | None = None, **given: Any) -> SamplerOutput:
    """Sample ``logits`` ``[R, V]`` (anything torch takes) with one request for each row."""
    tensor = torch.as_tensor(logits, dtype=torch.float32)
    n = given.pop("n", len(tensor))
    return CanonicalSampler(vocab_size or tensor.shape[1]).sample(tensor, sampler_inputs(n, **given))


def logits_of(*probabilities: float) -> list[float]:
    return [float(np.log(p)) if p else -np.inf for p in probabilities]
