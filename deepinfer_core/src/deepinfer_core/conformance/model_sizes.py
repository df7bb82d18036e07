"""Sizes of real models for the tests of ops: the small checkpoint that ships with DeepInfer, and the released V4.1."""

from __future__ import annotations

from typing import Any

from attrs import frozen


@frozen
class ModelSizes:
    """What the caches and their ops see of a model (``spec/model.md`` 1.2)."""

    name: str
    heads: int
    width: int
    """Channels of a head; key and value are one vector."""
    rotary: int
    window: int
    ring: int
    state_ring: int
    block: int
    """Tokens of a block."""
    index_heads: int
    index_width: int
    topk: int
    candidate_block: int
    groups: int
    """Groups of heads in the output projection."""
    vocab: int
    drafts: int

    @property
    def scale(self) -> float:
        return float(self.width**-0.5)

    def __str__(self) -> str:
        return self.name


SMALL = ModelSizes("small", 8, 64, 16, 32, 37, 6, 128, 4, 32, 16, 4, 2, 1536, 4)
RELEASED = ModelSizes("released", 64, 512, 64, 128, 134, 7, 128, 32, 128, 512, 8, 8, 129_280, 5)
BOTH = (SMALL, RELEASED)


def offered_heads(backend: Any, wanted: int) -> int:
    """``wanted``, or the least head count that the backend offers where it offers other ones only."""
    heads = tuple(backend.capabilities.heads)
    return wanted if not heads or wanted in heads else min(heads)
