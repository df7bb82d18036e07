"""The toy model with a drafter, and a sampler that draws what it proposes.

The drafter reads the history of a request back from the caches, as the model does, so a draft that was begun at a wrong
position, from a wrong token or from somebody else's blocks is a wrong draft. Without spoiling it equals the model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from drafting_toys import DRAFT_RING, DraftingSampler
from engine_toys import TOKENS, WINDOW, ToyCaches, ToyModel, logits_of, row_hidden

Spoil = Callable[[int, int], bool]
"""(position of a draft's predecessor, k) -> whether the proposal is to be wrong."""


class ToyBlock:
    def __init__(self, histories: list[list[int]], spoil: Spoil, *, with_confidence: bool) -> None:
        self.histories = histories
        self.spoil = spoil
        self.with_confidence = with_confidence
        self.next = 0

    def step(self, k: int, previous: Any) -> tuple[Any, Any]:
        if k != self.next:
            raise AssertionError(f"step {k} after {self.next - 1}")
        self.next += 1
        tokens = np.asarray(previous).tolist()
        for history, token in zip(self.histories, tokens, strict=True):
            history.append(int(token))
        hidden = np.array([row_hidden(h, h[-WINDOW:]) for h in self.histories], dtype=np.uint64)
        logits = logits_of(hidden)
        wrong = np.array([self.spoil(len(h) - 1, k) for h in self.histories])
        logits[wrong, :TOKENS] = np.roll(logits[wrong, :TOKENS], 1, axis=1)
        return logits, np.where(wrong, 0.1, 0.9).astype(np.float32) if self.with_confidence else None


class DraftedModel(ToyModel):
    """``draft_block`` drafts, spoiled where ``spoil`` says so."""

    def __init__(self, draft_block: int, spoil: Spoil | None = None, *, with_confidence: bool = True) -> None:
        super().__init__(DRAFT_RING)
        self.draft_block = draft_block
        self.spoil = spoil or (lambda position, k: False)
        self.with_confidence = with_confidence
        self.calls: list[bool] = []
        """Of each call: whether it was a prefill step."""

    def draft(self, hidden: Any, inputs: Any, sampled_ids: Any, accepted: Any, caches: ToyCaches) -> ToyBlock:
        self.calls.append(bool(inputs.is_prompt))
        if len(hidden) != inputs.total_q:
            raise AssertionError(f"{len(hidden)} hidden rows of {inputs.total_q}")
        histories = self._of_prefill(inputs, caches) if inputs.is_prompt else self._of_decode(inputs, accepted, caches)
        return ToyBlock(histories, self.spoil, with_confidence=self.with_confidence)

    @staticmethod
    def _of_prefill(inputs: Any, caches: ToyCaches) -> list[list[int]]:
        gathered = np.zeros(int(inputs.total_k_main[1]), dtype=np.int64)
        for block, begin, end, dst in inputs.load_main[1].tolist():
            gathered[dst : dst + end - begin] = caches.main[block, begin:end]
        ends = inputs.cu_seqlens_k.tolist()
        return [gathered[a:b].tolist() for a, b in itertools.pairwise(ends)]

    @staticmethod
    def _of_decode(inputs: Any, accepted: Any, caches: ToyCaches) -> list[list[int]]:
        first = inputs.cu_seqlens_q_incl - inputs.seqlens_q
        known = inputs.seqlens_k - inputs.seqlens_q + np.asarray(accepted) + 1
        return [
            caches.main[inputs.block_tables[row]].reshape(-1)[:length].tolist()
            for row, length in zip(first.tolist(), known.tolist(), strict=True)
        ]


class DrawingSampler(DraftingSampler):
    """Verifies as its base does; what it verifies are the best tokens of the model's proposals."""

    def __init__(self, num_draft: int, *, device: bool = False) -> None:
        super().__init__(num_draft, {}, lambda seed, position, j: False, device=device)

    def sample(self, logits: Any, inputs: Any) -> Any:
        out = super().sample(logits, inputs)
        out.draft_ids = out.confidence = None
        return out

    def draft(self, block: Any, inputs: Any, sampled: Any, num_draft: int) -> tuple[Any, Any]:
        previous, ids, confidence = sampled.sampled_ids, [], []
        for k in range(num_draft):
            logits, chance = block.step(k, previous)
            previous = logits[:, :TOKENS].argmax(axis=1).astype(np.int32)
            ids.append(previous)
            confidence.append(chance)
        drawn = np.stack(ids, axis=1)
        for slot, row in zip(inputs.draft_write_slot.tolist(), drawn, strict=True):
            if slot:
                self.pool[slot] = row
        chances: Any = None if confidence[0] is None else np.stack(confidence, axis=1)
        if not self.device:
            return drawn, chances
        import torch

        return torch.from_numpy(drawn), None if chances is None else torch.from_numpy(chances)
