"""The toy model with a drafter under the real sampler: drafts are drawn, verified and counted as in any engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from drafted_toys import DraftedModel, Spoil
from drafting_toys import DRAFT_RING, DraftingBackend, draft_hints
from engine_toys import BLOCK, SETTINGS, TOKENS, ToyParts, byte_tokenizer

from deepinfer_core.config import EngineConfig
from deepinfer_core.llm import LLM
from deepinfer_core.types import CacheLayer, CacheSpec, Capabilities

BLOCK_OF_DRAFTS = 5
NEVER: Spoil = lambda position, k: False  # noqa: E731
ALWAYS: Spoil = lambda position, k: True  # noqa: E731
ROTATION: Spoil = lambda position, k: k >= (position * 7 + 3) % 6  # noqa: E731
SPOILT: dict[str, Spoil] = {"none": NEVER, "all": ALWAYS, "in rotation": ROTATION}


class TorchModel(DraftedModel):
    """Logits as tensors, which the real sampler wants. Divided by ``softness``, so that draws differ."""

    softness = 4.0

    def logits(self, hidden: Any) -> Any:
        import torch

        return torch.from_numpy(super().logits(hidden)) / self.softness

    def draft(self, *args: Any) -> Any:
        return SoftBlock(super().draft(*args), self.softness)


class SoftBlock:
    def __init__(self, block: Any, softness: float) -> None:
        self.block = block
        self.softness = softness

    def step(self, k: int, previous: Any) -> tuple[Any, Any]:
        logits, confidence = self.block.step(k, previous)
        return logits / np.float32(self.softness), confidence


class InvariantBackend(DraftingBackend):
    """Claims what numpy rows do: they have the same bits in every batch."""

    capabilities = Capabilities(name="toy", device_type="host", arch="none", features=frozenset({"batch_invariant"}))


@attrs.define(eq=False)
class VerifiedParts(ToyParts):
    """The parts of an engine whose sampler is the canonical one, made through its hook."""

    def make_sampler(self, name: str, params: Mapping[str, Any], vocab_size: int) -> Any:
        from deepinfer_samplers import plugin

        backend = type("Host", (), {"device": "cpu", "ops": {}})()
        return plugin.deepinfer_sampler_create(
            name="canonical", params=params, vocab_size=vocab_size, config=self.config, backend=backend
        )


def verified_llm(spoil: Spoil = NEVER, *, with_confidence: bool = True, **settings: object) -> LLM:
    """Settings as of any engine; ``draft_tokens`` up to 5."""
    given = {**SETTINGS, **settings}
    config = EngineConfig.resolve(given, environ={}, flag_origin="argument")
    return LLM.from_assembly(verified_parts(config, spoil, with_confidence=with_confidence), byte_tokenizer())


def verified_parts(
    config: EngineConfig, spoil: Spoil = NEVER, *, with_confidence: bool = True, **changes: Any
) -> VerifiedParts:
    """Parts of an engine of ``config``; ``changes``: other fields of them."""
    return VerifiedParts(
        config,
        backend=InvariantBackend(),
        model=TorchModel(BLOCK_OF_DRAFTS, spoil, with_confidence=with_confidence),
        hints=attrs.evolve(draft_hints(0), backtrack=BLOCK_OF_DRAFTS + 1),
        cache_specs=(
            CacheSpec("main", "main", [CacheLayer(0, BLOCK, "i64", 1)]),
            CacheSpec("swa", "swa", [CacheLayer(0, DRAFT_RING, "i64", 1)]),
        ),
        **changes,
    )


__all__ = ["BLOCK_OF_DRAFTS", "SPOILT", "TOKENS", "verified_llm", "verified_parts"]
