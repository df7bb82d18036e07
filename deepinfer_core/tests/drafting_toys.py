"""The toy parts with speculation: a sampler that verifies and proposes prescribed drafts, and the cpu plugin's ops.

The drafts of a request are its own true continuation, spoiled at prescribed places, so the number accepted differs from
request to request and from step to step and is known in advance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from engine_toys import RING, TOKENS, TOY_HINTS, VOCAB, WINDOW, ToyBackend, ToyCaches, apply_masks, solo_tokens

from deepinfer_contracts import SamplerOutput
from deepinfer_core.types import CacheSpec, SchedulerHints

MAX_DRAFT = 5
DRAFT_RING = WINDOW + MAX_DRAFT + 1
Pattern = Callable[[int, int, int], bool]
"""(seed, position, j) -> whether draft j of the step that samples this position is right."""


def draft_hints(num_draft: int) -> SchedulerHints:
    return attrs.evolve(TOY_HINTS, num_draft=num_draft, swa_ring=DRAFT_RING, backtrack=num_draft + 1)


def on_numpy(op: Callable[..., Any]) -> Callable[..., Any]:
    """An op of the cpu plugin between numpy arrays."""
    import torch

    def tensor(value: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value

    def array(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: array(item) for key, item in value.items()}
        return value.numpy() if isinstance(value, torch.Tensor) else value

    def call(*args: Any, **options: Any) -> Any:
        return array(op(*map(tensor, args), **{key: tensor(value) for key, value in options.items()}))

    return call


class DraftingBackend(ToyBackend):
    """Wider rings, and the real ops of two steps in flight."""

    def __init__(self) -> None:
        super().__init__()
        from deepinfer_cpu.backend import OPS

        names = ("meta.feed_tokens", "meta.correct_lengths", "meta.verify_lengths", "meta.decode_metadata")
        self.ops = {name: on_numpy(OPS[name]) for name in names}

    def alloc_caches(self, specs: Sequence[CacheSpec], units: Mapping[str, int]) -> ToyCaches:
        caches = ToyCaches(units)
        caches.swa = np.full((units["swa"], DRAFT_RING), 8_888, dtype=np.int64)
        return caches

    def to_host(self, tensor: Any) -> Any:
        return tensor.numpy() if hasattr(tensor, "numpy") else tensor


class DraftingSampler:
    """Greedy, with coupled verification. A request is known by its seed, which ``truth`` maps to all its tokens."""

    def __init__(self, num_draft: int, truth: Mapping[int, Sequence[int]], pattern: Pattern, *, device: bool) -> None:
        self.num_draft = num_draft
        self.truth = truth
        self.pattern = pattern
        self.device = device
        self.pool = np.full((65, num_draft), VOCAB - 1, dtype=np.int32)  # by draft slot
        self.accepted: list[int] = []

    def sample(self, logits: Any, inputs: Any) -> SamplerOutput:
        scores = np.array(logits)[:, :TOKENS]
        apply_masks(scores, inputs)
        best = scores.argmax(axis=1).astype(np.int32)
        n, k = len(inputs.seed), self.num_draft
        first = range(n) if inputs.first_row is None else inputs.first_row.tolist()
        count = [1] * n if inputs.row_count is None else inputs.row_count.tolist()
        verified = np.full(len(best), -1, dtype=np.int32)
        accepted, sampled = np.zeros(n, np.int32), np.zeros(n, np.int32)
        draft_ids = np.full((n, k), VOCAB - 1, dtype=np.int32)
        confidence = np.zeros((n, k), dtype=np.float32)
        pads = np.full(k, VOCAB - 1, dtype=np.int32)
        for i in range(n):
            at = first[i]
            verify = count[i] - 1
            slot = int(inputs.draft_rows[at]) // k if verify else 0
            drafts = self.pool[slot] if slot else pads
            while accepted[i] < verify and drafts[accepted[i]] == best[at + accepted[i]]:
                verified[at + accepted[i]] = drafts[accepted[i]]
                accepted[i] += 1
            sampled[i] = best[at + accepted[i]]
            position = int(inputs.sample_pos[i]) + int(accepted[i])
            draft_ids[i] = self.propose(int(inputs.seed[i]), position)
            confidence[i] = [0.9 if self.pattern(int(inputs.seed[i]), position, j) else 0.1 for j in range(k)]
            if inputs.draft_write_slot is not None and inputs.draft_write_slot[i]:
                self.pool[inputs.draft_write_slot[i]] = draft_ids[i]
            if inputs.first_row is not None:
                self.accepted.append(int(accepted[i]))
        zeros = np.zeros(n, dtype=np.float32)
        out = SamplerOutput(sampled_ids=sampled, sampled_logprob=zeros, row_status=np.zeros(n, np.int8))
        out.draft_ids, out.confidence = draft_ids, confidence
        if inputs.first_row is not None:
            out.verified_ids, out.accepted = verified, accepted
        return on_device(out) if self.device else out

    def propose(self, seed: int, position: int) -> list[int]:
        """Drafts for the positions behind ``position``, which is sampled in this step."""
        tokens = self.truth.get(seed, ())
        out = []
        for j in range(self.num_draft):
            x = position + 1 + j
            token = tokens[x] if x < len(tokens) else 0
            out.append(token if self.pattern(seed, position, j) else (token + 1) % TOKENS)
        return out


def on_device(out: SamplerOutput) -> SamplerOutput:
    """Every array as a tensor: a sampler whose results stay on the device."""
    import torch

    arrays = {
        field.name: torch.from_numpy(value)
        for field in attrs.fields(SamplerOutput)
        if isinstance(value := getattr(out, field.name), np.ndarray)
    }
    return attrs.evolve(out, **arrays)


def whole_text(prompt: Sequence[int], count: int) -> list[int]:
    return [*prompt, *solo_tokens(prompt, count, ends=frozenset())]


__all__ = ["DRAFT_RING", "RING", "DraftingBackend", "DraftingSampler", "draft_hints", "whole_text"]
