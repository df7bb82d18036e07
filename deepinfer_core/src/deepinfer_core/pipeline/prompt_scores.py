"""Phase C for prompts whose log-probabilities are wanted: logits of their rows, a bounded number of rows at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from deepinfer_core.pipeline.machinery import Machinery
from deepinfer_core.pipeline.record import StepRecord
from deepinfer_core.pipeline.sampled import wrong_step_return
from deepinfer_core.records import SamplerInputs
from deepinfer_core.requests.token_logprobs import FLOOR

SCORE = "sampler.prompt_logprobs"
MAX_SLICE_ROWS = 8192
SLICE_BYTES = 128 << 20
"""Logits of one slice at most; a wider row is a slice of its own."""


def slice_rows(vocab_size: int) -> int:
    """Rows whose logits (f32) are in memory at once."""
    return max(1, min(MAX_SLICE_ROWS, SLICE_BYTES // (4 * vocab_size)))


def score_prompts(parts: Machinery, record: StepRecord, hidden: Any, rows: SamplerInputs) -> None:
    """Fill ``prompt_scores`` of ``record``: one array for each slice, on the device. Raises StepFault.

    ``rows``: as packed, on the host.
    """
    at, size = parts.at, slice_rows(parts.vocab_size)
    for start in range(0, len(rows.prompt_tokens), size):
        part = slice(start, start + size)
        with at.call("backend.bind_inputs"):
            wanted = parts.bound(
                SamplerInputs(
                    selected_prompt_rows=rows.selected_prompt_rows[part], prompt_tokens=rows.prompt_tokens[part]
                )
            )
        with at.call("model.forward"):  # whose result cannot be indexed otherwise
            chosen = hidden[wanted.selected_prompt_rows]
        with at.call("model.logits"):
            logits = parts.model.logits(chosen)
            at.expect_rows("model.logits", logits, len(chosen))
        with at.call(SCORE):
            scores = parts.sampler.prompt_logprobs(logits, wanted.prompt_tokens)  # type: ignore[attr-defined]
            if not hasattr(scores, "__len__") or len(scores) != len(chosen):
                got = f"{len(scores)} values" if hasattr(scores, "__len__") else type(scores).__name__
                raise wrong_step_return(
                    SCORE, at.owners.sampler, got, f"a log-probability for each of {len(chosen)} rows"
                )
        record.prompt_scores.append(scores)


def collected_scores(parts: Machinery, record: StepRecord) -> np.ndarray[Any, np.dtype[np.float32]] | None:
    """All values of ``record`` on the host, finite and at most 0; None where nobody asked. Raises StepFault."""
    if not record.prompt_scores:
        return None
    with parts.at.call(SCORE):
        owner = parts.at.owners.sampler
        arrays = [np.asarray(parts.backend.to_host(scores)).reshape(-1) for scores in record.prompt_scores]
        values = np.concatenate(arrays)
        if values.dtype.kind != "f":
            raise wrong_step_return(SCORE, owner, f"values of {values.dtype}", "float32")
        values = np.nan_to_num(values.astype(np.float32), nan=FLOOR, posinf=np.inf, neginf=FLOOR)
        if len(values) and float(values.max()) > 0:
            raise wrong_step_return(SCORE, owner, f"the log-probability {float(values.max())}", "values of at most 0")
        floored: np.ndarray[Any, np.dtype[np.float32]] = np.maximum(values, np.float32(FLOOR))
    return floored
