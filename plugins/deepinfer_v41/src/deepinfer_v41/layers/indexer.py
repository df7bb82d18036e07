"""The indexer: which compressed entries a token attends to (``spec/model.md`` 2.7)."""

from __future__ import annotations

from torch import Tensor

from deepinfer_core.interfaces import Backend
from deepinfer_v41.config import V41Config
from deepinfer_v41.layer_plan import LayerPlan
from deepinfer_v41.numerics import Cast
from deepinfer_v41.prepare import WeightStore
from deepinfer_v41.step import BackboneStep


class Indexer:
    """Scores the visible entries of the layer's KV source and keeps the best ``index_topk``.

    A candidate source also publishes the best blocks of entries; later indexers look only at those.
    """

    def __init__(self, prefix: str, plan: LayerPlan, config: V41Config, weights: WeightStore, backend: Backend) -> None:
        self._dense = backend.gemm.dense  # type: ignore[attr-defined]
        self._fused = backend.transform.fused  # type: ignore[attr-defined]
        self._index = backend.index  # type: ignore[attr-defined]
        self._plan, self._k = plan, config.index_topk
        self._heads, self._width = config.index_n_heads, config.index_head_dim
        self._cast: Cast | None = weights.numerics.index_query
        self._blocks, self._block = config.candidate_topk_blocks, config.candidate_block_size
        self._factor = self._width**-0.5 * self._heads**-0.5
        self._weights = weights.dense(f"{prefix}.indexer.weights_proj")

    def __call__(self, query: Tensor, x: Tensor, step: BackboneStep) -> None:
        """``query [T, heads * width]`` unrotated, ``x [T, D]``. The selection becomes the step's current one."""
        plan = self._plan
        heads = query.view(len(query), self._heads, self._width)
        q = self._fused(heads, rope=(step.rope(plan.ratio), False), cast=self._cast)
        weight = self._dense(x, self._weights) * self._factor
        candidates = step.candidates if plan.candidate_source is not None else None
        scores = step.scores(q, weight, plan, candidates, self._block)
        count = step.visible(plan.ratio)
        if plan.is_candidate_source:
            best, blocks = self._index.block_max(scores, count, self._block)
            step.candidates = self._index.topk(best, self._blocks, end=blocks)
        step.select(self._index.topk(scores, self._k, end=count), plan)
