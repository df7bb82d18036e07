"""The expert layer: routed FP4 experts, and one shared FP8 expert for every token (``spec/model.md`` 2.9)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from deepinfer_core.interfaces import Backend
from deepinfer_v41.config import V41Config
from deepinfer_v41.layer_plan import LayerPlan
from deepinfer_v41.prepare import WeightStore


class MoE:
    """``y = sum of the chosen experts, ascending id, + shared expert``, summed in FP32 and rounded once.

    ``gate.bias_vl`` belongs to image rows; images are refused before they get here, so it is not read.
    """

    def __init__(self, plan: LayerPlan, config: V41Config, weights: WeightStore, backend: Backend) -> None:
        prefix, count, self._k = f"{plan.prefix}.ffn", config.n_routed_experts, config.num_experts_per_tok
        if plan.is_draft:
            count, self._k = config.dspark_n_routed_experts, config.dspark_num_experts_per_tok
        self._moe = backend.moe  # type: ignore[attr-defined]
        self._dense = backend.gemm.dense  # type: ignore[attr-defined]
        self._cast = weights.numerics.activations
        self._scale = config.routed_scaling_factor
        self._temperature = config.gate_temp
        self._clamp = config.swiglu_limit
        self._gate = weights.dense(f"{prefix}.gate")
        self._bias = weights.f32(f"{prefix}.gate.bias")
        self._up = weights.experts(f"{prefix}.experts", count, ("w1", "w3"))
        self._down = weights.experts(f"{prefix}.experts", count, ("w2",))
        self._shared_up = weights.dense(f"{prefix}.shared_experts.w1", f"{prefix}.shared_experts.w3")
        self._shared_down = weights.dense(f"{prefix}.shared_experts.w2")

    def __call__(
        self, x: Tensor, quantised: Any, force_random: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """``x [T, D]`` normed, and the same rows as the GEMMs take them -> ``[T, D]``. Rows that are not ``valid`` go$
        to no routed expert."""
        index, weight = self._moe.gate(
            x,
            self._gate,
            self._bias,
            k=self._k,
            scale=self._scale,
            temperature=self._temperature,
            mask=valid,
            force_random=force_random,
        )
        dispatched = self._moe.dispatch(quantised, index, weight)
        routed = self._moe.experts(dispatched, self._up, self._down, clamp=self._clamp, cast=self._cast)
        hidden = self._moe.swiglu(self._dense(quantised, self._shared_up), clamp=self._clamp, cast=self._cast)
        shared = self._dense(hidden, self._shared_down)
        out: Tensor = self._moe.combine(routed, dispatched.handle, bias=shared)
        return out
