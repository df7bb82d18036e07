"""Steps of one sampler over several decode steps, with the fields that the contract may not have yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from attrs import asdict
from samplers_step import sampler_inputs

from deepinfer_samplers.canonical import CanonicalSampler
from deepinfer_samplers.reading import read
from deepinfer_samplers.rows import Preparation, Rows

INT32 = ("row_slot", "history_ids", "history_counts", "history_outputs", "top_logprobs")


def step_inputs(n: int, **given: Any) -> Any:
    """``SamplerInputs`` of ``n`` requests as an open record."""
    late: dict[str, Any] = {name: np.asarray(given.pop(name), np.int32) for name in INT32 if name in given}
    if "logprobs_raw" in given:
        late["logprobs_raw"] = np.asarray(given.pop("logprobs_raw"), np.uint8)
    late.update({name: given.pop(name) for name in ("grammar_mask", "grammar_rows") if name in given})
    late.setdefault("row_slot", np.arange(n, dtype=np.int32))
    return SimpleNamespace(**{**asdict(sampler_inputs(n, **given), recurse=False), **late})


def history(*requests: tuple[list[int], list[int]]) -> dict[str, Any]:
    """The fields that bring (prompt, outputs) of each request; an empty pair brings nothing."""
    return {
        "history_ids": [token for prompt, outputs in requests for token in [*prompt, *outputs]],
        "history_counts": [len(prompt) + len(outputs) for prompt, outputs in requests],
        "history_outputs": [len(outputs) for _, outputs in requests],
    }


def take(sampler: CanonicalSampler, logits: Any, **given: Any) -> Any:
    """One step of ``sampler``."""
    tensor = torch.as_tensor(logits, dtype=torch.float32)
    return sampler.sample(tensor, step_inputs(given.pop("n", len(tensor)), **given))


def prepared(logits: Any, preparation: Preparation | None = None, drafts: Any = None, **given: Any) -> list[Rows]:
    """The rows of a step after steps 1 to 7, in parts."""
    tensor = torch.as_tensor(logits, dtype=torch.float32)
    preparation = preparation or Preparation(tensor.shape[1])
    inputs = step_inputs(given.pop("n", len(tensor)), **given)
    step = read(inputs, tensor.shape[0], tensor.shape[1], preparation.vocab_size)
    drafts = None if drafts is None else torch.as_tensor(drafts)
    with torch.inference_mode():
        return list(preparation.parts(tensor, step, drafts))


def changed(logits: Any, preparation: Preparation | None = None, drafts: Any = None, **given: Any) -> torch.Tensor:
    """The logits after steps 1 to 7."""
    return torch.cat([rows.logits for rows in prepared(logits, preparation, drafts, **given)])
