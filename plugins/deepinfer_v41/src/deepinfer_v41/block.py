"""One layer, or a stage of the draft head: Engram, attention and experts around the streams (``spec/model.md`` 2.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_core.interfaces import Backend
from deepinfer_v41.config import V41Config
from deepinfer_v41.engram import EngramTables
from deepinfer_v41.layer_plan import LayerPlan
from deepinfer_v41.layers.attention import Attention
from deepinfer_v41.layers.engram_layer import EngramLayer
from deepinfer_v41.layers.mhc import HyperConnection
from deepinfer_v41.layers.moe import MoE
from deepinfer_v41.prepare import WeightStore
from deepinfer_v41.step import Step


class Block:
    def __init__(
        self, plan: LayerPlan, config: V41Config, tables: EngramTables, weights: WeightStore, backend: Backend
    ) -> None:
        prefix = plan.prefix
        self._rms = backend.norm.rms  # type: ignore[attr-defined]
        self._cast, self._eps = weights.numerics.activations, config.rms_norm_eps
        self._engram = (
            EngramLayer(f"{prefix}.engram", plan.engram, config, tables, weights, backend)
            if plan.engram is not None
            else None
        )
        self._attn_streams = HyperConnection(f"{prefix}.hc_attn", config, weights, backend)
        self._attn_norm = weights.f32(f"{prefix}.attn_norm.weight")
        self._attn = Attention(plan, config, weights, backend)
        self._ffn_streams = HyperConnection(f"{prefix}.hc_ffn", config, weights, backend)
        self._ffn_norm = weights.f32(f"{prefix}.ffn_norm.weight")
        self._moe = MoE(plan, config, weights, backend)
        self._collapse = backend.mhc.head  # type: ignore[attr-defined]
        self._is_draft_target = plan.is_draft_target

    def __call__(self, stream: Tensor, mix: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """``stream [T, C, D]`` and the input mix f32 ``[T, C]`` -> the same for the next block."""
        if self._engram is not None:
            stream = self._engram(stream, step.inputs.ngram_token_ids)
        if self._is_draft_target and step.taps is not None:
            step.taps.append(self._collapse(stream, torch.full_like(mix, 1 / mix.shape[1])))

        def attend(x: Tensor) -> Tensor:
            normed, quantised = self._normed(x, self._attn_norm)
            return self._attn(normed, quantised, step)

        def experts(x: Tensor) -> Tensor:
            normed, quantised = self._normed(x, self._ffn_norm)
            return self._moe(normed, quantised, step.force_random, step.valid)

        stream, mix = self._attn_streams(stream, mix, attend)
        return self._ffn_streams(stream, mix, experts)

    def _normed(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Any]:
        """The normed rows, plain and as the quantised GEMMs take them."""
        normed, quantised = self._rms(x, weight, eps=self._eps, cast=self._cast)
        return normed, normed if quantised is None else quantised
