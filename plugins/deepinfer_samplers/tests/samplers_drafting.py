"""Steps with drafts over prescribed logits: propose, then verify what was proposed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from samplers_step import sampler_inputs

from deepinfer_contracts import SamplerInputs, SamplerOutput
from deepinfer_samplers.canonical import CanonicalSampler


class Block:
    """Proposals with prescribed logits: f32 ``[K, N, V]``, and confidences ``[K, N]`` or None."""

    def __init__(self, logits: Any, confidence: Any = None) -> None:
        self.logits = torch.as_tensor(logits, dtype=torch.float32)
        self.confidence = None if confidence is None else torch.as_tensor(confidence, dtype=torch.float32)
        self.previous: list[Any] = []

    def step(self, k: int, previous: Any) -> tuple[Any, Any]:
        self.previous.append(torch.as_tensor(previous).tolist())
        return self.logits[k], None if self.confidence is None else self.confidence[k]


def drafting_sampler(vocab_size: int, num_draft: int, seqs: int, *, is_coupled: bool = False) -> CanonicalSampler:
    sampler = CanonicalSampler(vocab_size, num_draft=num_draft, is_coupled=is_coupled)
    sampler.reserve(seqs)
    return sampler


def inputs_of(n: int, num_draft: int, counts: Any = None, *, slots: Any = None, **given: Any) -> SamplerInputs:
    """Of ``n`` requests; ``counts``: rows of each, which makes it a decode step. Request i has slot i + 1."""
    slots = np.arange(1, n + 1, dtype=np.int32) if slots is None else np.asarray(slots, dtype=np.int32)
    inputs = sampler_inputs(n, **given)
    inputs.draft_write_slot = slots
    if inputs.stop_ids is None:
        inputs.stop_ids = np.zeros((n, 0), dtype=np.int32)
    if counts is not None:
        counts = np.broadcast_to(np.asarray(counts, dtype=np.int32), (n,)).copy()
        first = (np.cumsum(counts) - counts).astype(np.int32)
        offset = np.arange(counts.sum()) - np.repeat(first, counts)
        rows = np.repeat(slots, counts) * num_draft + offset
        rows[offset == np.repeat(counts, counts) - 1] = 0
        inputs.first_row, inputs.row_count, inputs.draft_rows = first, counts, rows.astype(np.int32)
        inputs.selected_rows = np.arange(counts.sum(), dtype=np.int32)
    return inputs


def sampled(ids: Any, accepted: Any = None) -> SamplerOutput:
    """What a step gave, as the drafter sees it."""
    n = len(ids)
    return SamplerOutput(
        sampled_ids=np.asarray(ids, dtype=np.int32),
        sampled_logprob=np.zeros(n, dtype=np.float32),
        row_status=np.zeros(n, dtype=np.int8),
        accepted=None if accepted is None else np.asarray(accepted, dtype=np.int32),
    )


def propose(sampler: CanonicalSampler, block: Block, n: int, **given: Any) -> tuple[Any, Any]:
    """Drafts of ``n`` requests whose step sampled the position ``sample_pos``."""
    return sampler.draft(block, inputs_of(n, sampler.num_draft, **given), sampled(np.zeros(n, int)), sampler.num_draft)


def first_tokens(out: SamplerOutput, inputs: SamplerInputs) -> Any:
    """The first token that each request got from a step."""
    return np.where(out.accepted > 0, out.verified_ids[inputs.first_row], out.sampled_ids)
