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
from deepinfer_v41.step import BackboneStep, Step


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
        self._starts_decoder = not plan.is_draft and plan.layer == config.n_prefill_layer

    def __call__(self, stream: Tensor, mix: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """``stream [T, C, D]`` and the input mix f32 ``[T, C]`` -> the same for the next block."""
        if self._engram is not None:
            stream = self._engram(stream, step.inputs.ngram_token_ids)
        if self._is_draft_target and step.taps is not None:
            step.taps.append(self._collapse(stream, torch.full_like(mix, 1 / mix.shape[1])))

        if self._starts_decoder and isinstance(step, BackboneStep) and step.is_bounded:
            stream, mix = self._enter_decoder(stream, mix, step)
        else:
            stream, mix = self._attn_streams(stream, mix, lambda x: self._attn(*self._normed(x, self._attn_norm), step))

        def experts(x: Tensor) -> Tensor:
            normed, quantised = self._normed(x, self._ffn_norm)
            return self._moe(normed, quantised, step.force_random, step.valid)

        return self._ffn_streams(stream, mix, experts)

    def _enter_decoder(self, stream: Tensor, mix: Tensor, step: BackboneStep) -> tuple[Tensor, Tensor]:
        """Global keys of all rows, then the attention of those that the decoder half keeps (``spec/model.md`` 5.3)."""
        x, mix, post, comb = self._attn_streams.split(stream, mix)
        self._attn.write_global(self._normed(x, self._attn_norm)[0], step)
        kept = step.enter_decoder()
        if kept is not None:
            x, stream, mix, post, comb = (torch.index_select(rows, 0, kept) for rows in (x, stream, mix, post, comb))
        out = self._attn(*self._normed(x, self._attn_norm), step, has_global=True)
        return self._attn_streams.join(out, stream, post, comb), mix

    def write_global(self, stream: Tensor, mix: Tensor, step: BackboneStep) -> None:
        """Only the global keys of all rows: of a step whose decoder half nobody reads."""
        x, *_ = self._attn_streams.split(stream, mix)
        self._attn.write_global(self._normed(x, self._attn_norm)[0], step)

    def _normed(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Any]:
        """The normed rows, plain and as the quantised GEMMs take them."""
        normed, quantised = self._rms(x, weight, eps=self._eps, cast=self._cast)
        return normed, normed if quantised is None else quantised
