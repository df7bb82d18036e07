"""What the draft head proposed for one step, as the sampler draws from it: one draft after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.errors import ModelError
from deepinfer_v41.layers.draft_heads import ConfidenceHead, MarkovHead


class V41DraftBlock:
    """The ``DraftBlock`` of ``deepinfer_core.interfaces``.

    :param rows: ``[K, N, D]``, rows of the block before the last norm.
    :param base: f32 ``[K, N, V]``, their logits without the term of the token before.
    """

    def __init__(self, rows: Tensor, base: Tensor, markov: MarkovHead, confidence: ConfidenceHead) -> None:
        self._rows, self._base = rows, base
        self._markov, self._confidence = markov, confidence

    @torch.inference_mode()
    def step(self, k: int, previous: Tensor) -> tuple[Tensor, Tensor]:
        """Logits f32 ``[N, V]`` of draft ``k`` behind ``previous`` int ``[N]``, and its confidence f32 ``[N]``."""
        if not 0 <= k < len(self._rows):
            raise ModelError(
                f"draft {k} was asked for, and {len(self._rows)} were proposed",
                remedy="draw at most as many drafts as the setting draft_tokens says",
            )
        embedded = self._markov.embed(previous)
        logits = self._markov.logits(embedded, self._base[k])
        return logits, self._confidence(k, self._rows[k], embedded)
