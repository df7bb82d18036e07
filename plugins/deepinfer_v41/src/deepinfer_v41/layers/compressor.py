"""The compressor of a layer that owns global KV: main entries and their index keys (``spec/model.md`` 2.6, 2.7)."""

from __future__ import annotations

from torch import Tensor

from deepinfer_core.interfaces import Backend
from deepinfer_v41.config import V41Config
from deepinfer_v41.prepare import WeightStore
from deepinfer_v41.step import BackboneStep


class Compressor:
    """Turns ``ratio`` normed inputs into one latent; stores it rotated (main KV) and projected (index key)."""

    def __init__(self, prefix: str, layer: int, config: V41Config, weights: WeightStore, backend: Backend) -> None:
        self._dense = backend.gemm.dense  # type: ignore[attr-defined]
        self._fused = backend.transform.fused  # type: ignore[attr-defined]
        self._layer, self._ratio, self._width = layer, config.compress_ratios[layer], config.head_dim
        self._dtype, eps = weights.numerics.dtype, config.rms_norm_eps
        stems = [f"{prefix}.compressor.wkv"] if self._ratio == 1 else [f"{prefix}.compressor.wgate"]
        if self._ratio > 1:
            stems.append(f"{prefix}.compressor.wkv")
        self._project = weights.dense(*stems)
        self._norm = (weights.f32(f"{prefix}.compressor.norm.weight"), eps)
        self._index_project = weights.dense(f"{prefix}.indexer.wk")
        self._index_norm = (weights.f32(f"{prefix}.indexer.k_norm.weight"), eps)

    def __call__(self, x: Tensor, step: BackboneStep) -> None:
        """Write the entries that the rows of ``x [T, D]`` complete; keep the rows of open groups in the ring."""
        turn = (step.entry_rope(self._ratio), False)
        slots = step.entry_slots(self._ratio)
        main, index = step.view("main", self._layer), step.view("index", self._layer)
        latent = self._latent(x, step)
        _, normed = self._fused(latent, norm=self._norm, rope=turn, store=(main, slots), copy_stage="norm")
        key = self._dense(normed, self._index_project)
        self._fused(key, norm=self._index_norm, rope=turn, store=(index, slots))

    def _latent(self, x: Tensor, step: BackboneStep) -> Tensor:
        if self._ratio == 1:
            latent: Tensor = self._dense(x, self._project)
            return latent
        # The softmax over a group works on unrounded sums, in every numeric mode.
        both = self._dense(x, self._project, out_dtype=step.state_dtype)
        state = step.view("state", self._layer).tensor
        return step.compress(both[:, : self._width], both[:, self._width :], state, self._ratio, self._dtype)
