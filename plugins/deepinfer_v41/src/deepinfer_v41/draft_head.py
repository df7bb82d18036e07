"""The draft head (DSpark): proposes a block of tokens from what the backbone computed (``spec/model.md`` 2.11).

Two sides. For every row that the backbone runs, the keys of the draft stages are made from the streams before a few of
its layers and kept in rings (:meth:`DraftHead.store_keys`). Behind the sampling of a step, a block of rows runs through
the stages once (:meth:`DraftHead.propose`): the sampled token, then noise tokens, each at its position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.interfaces import Backend
from deepinfer_v41.block import Block
from deepinfer_v41.config import V41Config
from deepinfer_v41.draft_block import V41DraftBlock
from deepinfer_v41.draft_step import DraftStep
from deepinfer_v41.engram import EngramTables
from deepinfer_v41.layers.draft_heads import ConfidenceHead, MarkovHead
from deepinfer_v41.prepare import WeightStore, one_hot_mix
from deepinfer_v41.step import BackboneStep


class DraftHead:
    """The stages ``mtp.*`` and their heads; embedding and output head are the backbone's.

    :param draft_tokens: Drafts that are asked for, at most the rows of a block.
    :param temperatures: Of the confidences: one for all drafts, or one for each.
    """

    def __init__(
        self,
        config: V41Config,
        tables: EngramTables,
        weights: WeightStore,
        backend: Backend,
        *,
        draft_tokens: int,
        temperatures: Sequence[float] = (1.0,),
    ) -> None:
        plans = [plan for plan in config.layers if plan.is_draft]
        first, last = plans[0].prefix, plans[-1].prefix
        self._dense = backend.gemm.dense  # type: ignore[attr-defined]
        self._rms = backend.norm.rms  # type: ignore[attr-defined]
        self._fused = backend.transform.fused  # type: ignore[attr-defined]
        self._mhc = backend.mhc  # type: ignore[attr-defined]
        self._quantise = backend.quant.cast_per_token  # type: ignore[attr-defined]
        self._cast, self._eps = weights.numerics.activations, config.rms_norm_eps
        self._width, self._rows, self._drafts = config.head_dim, config.dspark_block_size, draft_tokens
        self._project = weights.dense(f"{first}.main_proj")
        self._main_norm = weights.f32(f"{first}.main_norm.weight")
        # The keys of all stages come from the same rows, so they are one product.
        self._keys = weights.dense(*(f"{plan.prefix}.attn.wkv" for plan in plans))
        self._key_norms = [
            (plan.layer, (weights.f32(f"{plan.prefix}.attn.kv_norm.weight"), config.rms_norm_eps)) for plan in plans
        ]
        self._stages = [Block(plan, config, tables, weights, backend) for plan in plans]
        self._norm = weights.f32(f"{last}.norm.weight")
        self._markov = MarkovHead(f"{last}.markov_head", weights, backend)
        spread = tuple(temperatures) * draft_tokens if len(temperatures) == 1 else tuple(temperatures)
        self._confidence = ConfidenceHead(f"{last}.confidence_head", spread, weights, backend)

    def store_keys(self, step: BackboneStep, taps: Sequence[Tensor]) -> None:
        """Keys of every row that ``step`` has left into the rings of the stages.

        ``taps``: these rows ``[T, D]``, in layer order.
        """
        rows: Any = torch.cat(list(taps), dim=1)
        if self._cast is not None:
            fmt, group, sf = self._cast
            rows = self._quantise(rows, fmt=fmt, group=group, sf=sf)
        main, quantised = self._rms(self._dense(rows, self._project), self._main_norm, eps=self._eps, cast=self._cast)
        keys = self._dense(main if quantised is None else quantised, self._keys).split(self._width, dim=1)
        turn = (step.rope(0), False)
        for kv, (layer, norm) in zip(keys, self._key_norms, strict=True):
            self._fused(kv, norm=norm, rope=turn, store=(step.view("swa", layer), step.slot_swa))

    def propose(self, step: DraftStep, rows: Tensor, streams: int, logits: Callable[[Tensor], Tensor]) -> V41DraftBlock:
        """Run the block of each request.

        :param rows: Embedded tokens ``[N * block, D]``.
        :param logits: The backbone's output head.
        """
        stream, mix = self._mhc.expand(rows, streams), one_hot_mix(len(rows), streams, rows.device)
        for stage in self._stages:
            stream, mix = stage(stream, mix, step)
        # Only so many rows are read as there are drafts; the others took part as keys.
        last = self._mhc.head(stream, mix).view(-1, self._rows, rows.shape[1])[:, : self._drafts].transpose(0, 1)
        last = last.contiguous()
        normed, _ = self._rms(last, self._norm, eps=self._eps)
        return V41DraftBlock(last, normed, logits, self._markov, self._confidence)
