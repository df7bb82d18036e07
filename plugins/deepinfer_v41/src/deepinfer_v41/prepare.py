"""From checkpoint tensors to the backend's prepared weights, by checkpoint name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.interfaces import Backend
from deepinfer_v41.numerics import Numerics

PreparedWeight = Any


class WeightStore:
    """Hands out weights in the form an op wants. ``stem`` is a name without ``.weight``."""

    def __init__(self, tensors: Mapping[str, Tensor], backend: Backend, numerics: Numerics) -> None:
        self._tensors = tensors
        self._backend = backend
        self.numerics = numerics

    def raw(self, name: str) -> Tensor:
        return self._tensors[name].to(self._backend.device)

    def f32(self, name: str) -> Tensor:
        """A small parameter (norm weight, sink, bias) in FP32; widening loses nothing."""
        return self.raw(name).float().contiguous()

    def activation(self, name: str) -> Tensor:
        """A table whose rows become activations (the embedding), in the type of the streams."""
        return self.raw(name).to(self.numerics.dtype)

    def _pair(self, stem: str) -> tuple[Tensor, Tensor | None]:
        scale = f"{stem}.scale"
        return self.raw(f"{stem}.weight"), self.raw(scale) if scale in self._tensors else None

    def dense(self, *stems: str) -> PreparedWeight:
        """One matrix whose outputs are those of all ``stems``, in order."""
        pairs = [self._pair(stem) for stem in stems]
        return self._prepare("+".join(stems), [w for w, _ in pairs], [s for _, s in pairs], use="dense")

    def heads(self, stem: str, groups: int) -> PreparedWeight:
        """The grouped output projection, one matrix for each of ``groups`` head groups."""
        weight, scale = self._pair(stem)
        return self._backend.quant.prepare_weight(stem, weight, scale, use=f"heads:{groups}")  # type: ignore[attr-defined]

    def experts(self, prefix: str, count: int, parts: Sequence[str]) -> PreparedWeight:
        """Stacked expert matrices; ``parts`` are joined along the outputs (gate rows, then up rows)."""
        pairs = [[self._pair(f"{prefix}.{e}.{part}") for part in parts] for e in range(count)]
        weights = [[w for w, _ in row] for row in pairs]
        scales = [[s for _, s in row] for row in pairs]
        absent = all(s is None for row in scales for s in row)
        name = f"{prefix}.*.{'+'.join(parts)}"
        return self._backend.quant.prepare_weight(name, weights, None if absent else scales, use="experts")  # type: ignore[attr-defined]

    def _prepare(
        self, name: str, weights: Sequence[Tensor], scales: Sequence[Tensor | None], *, use: str
    ) -> PreparedWeight:
        prepare = self._backend.quant.prepare_weight  # type: ignore[attr-defined]
        if len(weights) == 1:
            return prepare(name, weights[0], scales[0], use=use)
        return prepare(name, list(weights), None if scales[0] is None else list(scales), use=use)


def one_hot_mix(rows: int, streams: int, device: torch.device) -> Tensor:
    """Input mix of the first sublayer: the first stream alone, and all streams are the embedding."""
    mix = torch.zeros(rows, streams, dtype=torch.float32, device=device)
    mix[:, 0] = 1.0
    return mix
