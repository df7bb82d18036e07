"""A row sampler and a logits filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class MinP:
    """Draws among the tokens of at least ``min_p`` of the best one's probability."""

    def __init__(self, min_p: float = 0.05) -> None:
        self.min_p = min_p

    def sample(self, logits: Any, draws: Sequence[Any]) -> list[int]:
        with np.errstate(over="ignore"):  # a difference beyond float32 is a probability of 0
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p[p < self.min_p] = 0.0
        p /= p.sum(axis=1, keepdims=True)
        return [draw(row) for draw, row in zip(draws, p, strict=True)]


class Ban:
    """Forbids some tokens."""

    def __init__(self, vocab_size: int, tokens: Sequence[int] = (3, 5)) -> None:
        self.tokens = [token for token in tokens if token < vocab_size]

    def apply(self, logits: Any, positions: Sequence[int]) -> Any:
        changed = logits.copy()
        changed[:, self.tokens] = -np.inf
        return changed
