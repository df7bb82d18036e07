"""What the draft head proposed for one step, as the sampler draws from it: one draft after the other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer_core.errors import ModelError
from deepinfer_v41.layers.draft_heads import ConfidenceHead, MarkovHead

VALUES_AT_ONCE = 1 << 24
"""Logits of a block that are made together: 64 MiB."""


class V41DraftBlock:
    """The ``DraftBlock`` of ``deepinfer_core.interfaces``.

    :param rows: ``[K, N, D]``, rows of the block before the last norm.
    :param normed: ``[K, N, D]``, the same behind it.
    :param logits: The output head.
    """

    def __init__(
        self,
        rows: Tensor,
        normed: Tensor,
        logits: Callable[[Tensor], Tensor],
        markov: MarkovHead,
        confidence: ConfidenceHead,
    ) -> None:
        self._rows, self._normed, self._logits = rows, normed, logits
        self._markov, self._confidence = markov, confidence
        # One product for all drafts, unless its result is too much to be held at once.
        count, n, width = normed.shape
        is_small = count * n * markov.vocab_size <= VALUES_AT_ONCE
        self._base = logits(normed.view(-1, width)).view(count, n, -1) if is_small else None

    def base(self, k: int) -> Tensor:
        """Logits f32 ``[N, V]`` of draft ``k`` without the term of the token before."""
        return self._logits(self._normed[k]) if self._base is None else self._base[k]

    @torch.inference_mode()
    def step(self, k: int, previous: Tensor) -> tuple[Tensor, Tensor]:
        """Logits f32 ``[N, V]`` of draft ``k`` behind ``previous`` int ``[N]``, and its confidence f32 ``[N]``."""
        if not 0 <= k < len(self._rows):
            raise ModelError(
                f"draft {k} was asked for, and {len(self._rows)} were proposed",
                remedy="draw at most as many drafts as the setting draft_tokens says",
            )
        embedded = self._markov.embed(previous)
        logits = self._markov.logits(embedded, self.base(k))
        return logits, self._confidence(k, self._rows[k], embedded)
