"""Attention over the window and the selected compressed entries, in one softmax (``spec/model.md`` 2.5)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from deepinfer_core.interfaces import Backend
from deepinfer_v41.config import V41Config
from deepinfer_v41.layer_plan import LayerPlan
from deepinfer_v41.layers.compressor import Compressor
from deepinfer_v41.layers.indexer import Indexer
from deepinfer_v41.prepare import WeightStore
from deepinfer_v41.step import BackboneStep, Step


class Attention:
    """One latent per token is key and value of all heads; only its source layers differ between layer kinds."""

    def __init__(self, plan: LayerPlan, config: V41Config, weights: WeightStore, backend: Backend) -> None:
        prefix = f"{plan.prefix}.attn"
        self._dense = backend.gemm.dense  # type: ignore[attr-defined]
        self._einsum = backend.gemm.einsum_heads  # type: ignore[attr-defined]
        self._rms = backend.norm.rms  # type: ignore[attr-defined]
        self._fused = backend.transform.fused  # type: ignore[attr-defined]
        self._quantise = backend.quant.cast_per_token  # type: ignore[attr-defined]
        self._plan, self._cast = plan, weights.numerics.activations
        self._heads, self._width, self._groups = config.num_attention_heads, config.head_dim, config.o_groups
        self._rank, self._eps = config.q_lora_rank, config.rms_norm_eps
        self._scale = config.head_dim**-0.5
        self._down = weights.dense(f"{prefix}.wq_a", f"{prefix}.wkv")
        self._q_norm = weights.f32(f"{prefix}.q_norm.weight")
        self._kv_norm = (weights.f32(f"{prefix}.kv_norm.weight"), config.rms_norm_eps)
        # The indexer's query comes from the same latent, so both are one product.
        stems = [f"{prefix}.wq_b", *([f"{prefix}.indexer.wq_b"] if plan.has_indexer else [])]
        self._up = weights.dense(*stems)
        self._sink = weights.f32(f"{prefix}.attn_sink")
        self._wo_a = weights.heads(f"{prefix}.wo_a", config.o_groups)
        self._wo_b = weights.dense(f"{prefix}.wo_b")
        self._compressor = Compressor(prefix, plan.layer, config, weights, backend) if plan.has_compressor else None
        self._indexer = Indexer(prefix, plan, config, weights, backend) if plan.has_indexer else None

    def write_global(self, x: Tensor, step: BackboneStep) -> None:
        """Only the entries that the rows of ``x [T, D]``, normed, complete; nothing where the layer owns none."""
        if self._compressor is not None:
            self._compressor(x, step)

    def __call__(self, x: Tensor, quantised: Any, step: Step, *, has_global: bool = False) -> Tensor:
        """``x [T, D]`` normed, and the same rows as the GEMMs take them -> ``[T, D]``. Writes the caches.

        ``has_global``: :meth:`write_global` ran already, maybe over more rows.
        """
        turn = step.rope(self._plan.ratio)
        low = self._dense(quantised, self._down)
        plain = self._cast is None  # otherwise only the quantised rows are read
        latent, latent_q = self._rms(
            low[:, : self._rank], self._q_norm, eps=self._eps, cast=self._cast, want_bf16=plain
        )
        up = self._dense(latent if latent_q is None else latent_q, self._up)
        width = self._heads * self._width
        q = up[:, :width].view(len(up), self._heads, self._width)
        self._fused(q, rope=(turn, False), out=q)  # in place: only a part of each head turns
        new_keys = step.store_window(low[:, self._rank :], self._kv_norm, turn, self._plan.layer)
        if isinstance(step, BackboneStep):
            if not has_global:
                self.write_global(x, step)
            if self._indexer is not None:
                self._indexer(up[:, width:], x, step)
        out = step.attend(q, new_keys, self._plan, scale=self._scale, sink=self._sink)
        self._fused(out, rope=(turn, True), out=out)
        z = self._einsum(out.view(len(out), self._groups, -1), self._wo_a).flatten(1)
        if self._cast is not None:
            fmt, group, sf = self._cast
            z = self._quantise(z, fmt=fmt, group=group, sf=sf)
        result: Tensor = self._dense(z, self._wo_b)
        return result
