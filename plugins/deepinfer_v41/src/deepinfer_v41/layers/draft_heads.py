"""The two small heads behind the draft stages (``spec/model.md`` 2.11, ``spec/sampling.md`` 4.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deepinfer_core.interfaces import Backend
from deepinfer_v41.prepare import WeightStore

LARGEST_DOT = 60.0


class MarkovHead:
    """What the token before says about a draft: a term of low rank on its logits."""

    def __init__(self, prefix: str, weights: WeightStore, backend: Backend) -> None:
        self._dense = backend.gemm.dense  # type: ignore[attr-defined]
        self._embed = weights.activation(f"{prefix}.embed.weight")
        self._head = weights.dense(f"{prefix}.head")
        self.vocab_size = len(self._embed)

    def embed(self, tokens: Tensor) -> Tensor:
        """``[N]`` ids -> ``[N, rank]``; an id out of range, of a request that failed, counts as the nearest one."""
        return torch.index_select(self._embed, 0, tokens.reshape(-1).clamp(0, self.vocab_size - 1))

    def logits(self, embedded: Tensor, base: Tensor) -> Tensor:
        """``base`` f32 ``[N, V]`` with the term added."""
        out: Tensor = self._dense(embedded, self._head, out_dtype=torch.float32, acc=base)
        return out


class ConfidenceHead:
    """The chance that a draft is accepted if those before it are: one number from its row and the token before."""

    def __init__(self, prefix: str, temperatures: Sequence[float], weights: WeightStore, backend: Backend) -> None:
        self._dense = backend.gemm.dense  # type: ignore[attr-defined]
        self._proj = weights.dense(f"{prefix}.proj")
        # Tensors: a device divides by a number of the host by multiplying with its rounded reciprocal.
        self._temperatures = torch.tensor(tuple(temperatures), dtype=torch.float32, device=backend.device).unbind(0)

    def __call__(self, k: int, row: Tensor, embedded: Tensor) -> Tensor:
        """``row [N, D]`` and ``embedded [N, rank]`` -> f32 ``[N]`` in [0, 1]; 0 where a row is not finite."""
        dot = self._dense(torch.cat([row, embedded], dim=1), self._proj, out_dtype=torch.float32).squeeze(1)
        scaled = (dot / self._temperatures[k]).clamp(-LARGEST_DOT, LARGEST_DOT)
        # Not torch's sigmoid: its bits depend on where in a vector an element stands.
        return torch.nan_to_num(scaled.neg_().exp_().add_(1.0).reciprocal_(), nan=0.0)
