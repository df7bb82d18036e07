"""A decode step: rows read the caches in place, through window rings and block tables (``spec/engine.md`` 6.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_contracts import InputMetadataV41
from deepinfer_core.interfaces import Backend, Caches
from deepinfer_v41.layer_plan import LayerPlan
from deepinfer_v41.layers.rope import RopeTables
from deepinfer_v41.step import BackboneStep, Rope


class DecodeStep(BackboneStep):
    def __init__(
        self,
        inputs: InputMetadataV41,
        caches: Caches,
        backend: Backend,
        ropes: RopeTables,
        *,
        window: int,
        ring: int,
        max_q: int,
    ) -> None:
        super().__init__(inputs, caches, backend, ropes)
        self._max_q = max_q
        self._plan = self._attn.plan()
        self._window_slots = self._meta.window_index_decode(inputs.swa_offset_len, ring, window)
        self._entry_slots: Tensor | None = None

    def store_window(self, kv: Tensor, norm: Any, turn: Rope, layer: int) -> None:
        self._fused(kv, norm=norm, rope=(turn, False), store=(self.view("swa", layer), self.slot_swa))

    def compress(self, score: Tensor, latent: Tensor, state: Tensor, ratio: int, dtype: torch.dtype) -> Tensor:
        i = self.inputs
        out: Tensor = self._compress.decode(
            score, latent, state, i.state_slot_idx, i.context_lens, ratio, max_q=self._max_q, dtype=dtype
        )
        return out

    @property
    def valid(self) -> Tensor | None:
        """A step that was made for more rows than it has must not send the others to experts. On the host there is none
        of that kind."""
        rows: Tensor | None = self.inputs.valid_token_mask
        return None if self._on_host else rows

    def visible(self, ratio: int) -> Tensor:
        count: Tensor = self.inputs.klen[ratio]
        return count

    def scores(self, q: Any, weight: Tensor, plan: LayerPlan, candidates: Tensor | None, block: int) -> Tensor:
        keys, table = self.view("index", plan.kv_source), self.inputs.block_tables
        out: Tensor = self._index.logits(
            q,
            weight,
            keys,
            context_lens=self.inputs.klen[plan.ratio],
            block_table=table,
            max_k=None if self._on_host else table.shape[1] * keys.page,  # the longest row is known to the device only
            candidates=candidates,
            block=block,
        )
        return out

    def select(self, entries: Tensor, plan: LayerPlan) -> None:
        per_block = self.view("main", plan.kv_source).page
        self._entry_slots = self._meta.logical_to_slot(entries, self.inputs.block_tables, per_block)

    def attend(self, q: Tensor, new_keys: Any, plan: LayerPlan, *, scale: float, sink: Tensor) -> Tensor:
        window = self.view("swa", plan.layer)
        if plan.kv_source is None:
            out, _ = self._attn.sparse_decode(q, window, self._window_slots, plan=self._plan, scale=scale, sink=sink)
        else:
            out, _ = self._attn.sparse_decode(
                q,
                window,
                self._window_slots,
                plan=self._plan,
                scale=scale,
                sink=sink,
                extra=self.view("main", plan.kv_source),
                extra_idx=self._entry_slots,
            )
        return out  # type: ignore[no-any-return]
