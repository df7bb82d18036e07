"""A prefill step: keys are gathered into one buffer, rows name them by buffer index (``spec/engine.md`` 6.3).

The buffer of a layer is ``[N * W window history ; T new rows ; compressed entries]``. The history is read before the
new rows are stored, because they may reuse its slots; entries are stored first and gathered with the older ones.

With bounded replay the decoder half runs a part of the rows only (:meth:`PrefillStep.enter_decoder`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_contracts import InputMetadataV41
from deepinfer_core.interfaces import Backend, Caches
from deepinfer_v41.layer_plan import LayerPlan
from deepinfer_v41.layers.rope import RopeTables
from deepinfer_v41.query_rows import QueryRows
from deepinfer_v41.step import BackboneStep, Rope


class PrefillStep(BackboneStep):
    def __init__(
        self,
        inputs: InputMetadataV41,
        caches: Caches,
        backend: Backend,
        ropes: RopeTables,
        *,
        window: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(inputs, caches, backend, ropes)
        self._dtype, self._window = dtype, window
        self._entry_rows: dict[int, Tensor] = {}
        self._main: dict[int | None, Tensor] = {}
        self._index_keys: dict[int | None, Any] = {}
        self._decoder = QueryRows.kept_by(inputs)
        self._take(QueryRows.all_of(inputs))

    def _take(self, rows: QueryRows) -> None:
        """From here on the step has these rows; what belongs to the rows before is gone."""
        self._rows = rows
        self._rope.clear()
        self._visible: dict[int, Tensor] = {}
        self._window_index = self._meta.window_index_prefill(rows.pivots, self._window)
        self._window_rows = int(self.inputs.total_k_swa) + rows.count
        self._attend_index = self._window_index

    @property
    def is_bounded(self) -> bool:
        return self._decoder is not None

    @property
    def needs_decoder(self) -> bool:
        return self._decoder is None or self._decoder.index is None or int(self.inputs.rp_num_live) > 0

    def enter_decoder(self) -> Tensor | None:
        if self._decoder is None:
            return None
        self._take(self._decoder)
        index = self._rows.index
        if index is not None:
            self.candidates = None if self.candidates is None else torch.index_select(self.candidates, 0, index)
            self.taps = None if self.taps is None else [torch.index_select(tap, 0, index) for tap in self.taps]
        return index

    def spread(self, hidden: Tensor) -> Tensor:
        index = self._rows.index
        if index is None:
            return hidden
        return hidden.new_zeros(int(self.inputs.total_q), hidden.shape[1]).index_copy_(0, index.long(), hidden)

    @property
    def positions(self) -> Tensor:
        return self._rows.positions

    @property
    def slot_swa(self) -> Tensor:
        return self._rows.slot_swa

    @property
    def force_random(self) -> Tensor | None:
        rows = super().force_random
        if rows is None or self._rows.index is None:
            return rows
        return torch.index_select(rows, 0, self._rows.index)

    def store_window(self, kv: Tensor, norm: Any, turn: Rope, layer: int) -> Tensor:
        inputs, view = self.inputs, self.view("swa", layer)
        history = self._cache.load_segments(view, inputs.load_swa, inputs.total_k_swa, dtype=self._dtype)
        _, new = self._fused(kv, norm=norm, rope=(turn, False), store=(view, self.slot_swa), copy_stage="cast_back")
        return torch.cat([history, new])

    def compress(self, score: Tensor, latent: Tensor, state: Tensor, ratio: int, dtype: torch.dtype) -> Tensor:
        i = self.inputs
        out: Tensor = self._compress.prefill(
            score,
            latent,
            state,
            i.state_slot_idx,
            self._sequence_of_entries(ratio),
            i.cu_seqlens_q,
            i.cu_seqlens_k,
            i.cu_compressed_q[ratio],
            ratio,
            dtype=dtype,
        )
        return out

    def _sequence_of_entries(self, ratio: int) -> Tensor:
        """Sequence of each of ``entry_slots``, i32."""
        if ratio not in self._entry_rows:
            counts, rows = self.inputs.cu_compressed_q[ratio].diff(), self.entry_slots(ratio).shape[0]
            numbers = torch.arange(counts.shape[0], dtype=torch.int32, device=counts.device)
            self._entry_rows[ratio] = torch.repeat_interleave(numbers, counts, output_size=rows)
        return self._entry_rows[ratio]

    def visible(self, ratio: int) -> Tensor:
        if ratio not in self._visible:
            self._visible[ratio] = self._rows.ke[ratio] - self._rows.ks[ratio]
        return self._visible[ratio]

    def _gather(self, name: str, layer: int | None, ratio: int) -> Any:
        segments, total = self.inputs.load_main[ratio], self.inputs.total_k_main[ratio]
        return self._cache.load_segments(self.view(name, layer), segments, total, dtype=self._dtype)

    def scores(self, q: Any, weight: Tensor, plan: LayerPlan, candidates: Tensor | None, block: int) -> Tensor:
        source, ratio = plan.kv_source, plan.ratio
        if source not in self._index_keys:
            self._index_keys[source] = self._gather("index", source, ratio)
        span = (self._rows.ks[ratio], self._rows.ke[ratio])
        keys, most = self._index_keys[source], None if self._on_host else int(self.inputs.total_k_main[ratio])
        out: Tensor = self._index.logits(q, weight, keys, span=span, max_k=most, candidates=candidates, block=block)
        return out

    def select(self, entries: Tensor, plan: LayerPlan) -> None:
        start = self._rows.ks[plan.ratio][:, None]
        rows = torch.where(entries >= 0, entries + start, entries)
        self._attend_index = self._meta.index_cat(self._window_index, rows, self._window_rows)

    def attend(self, q: Tensor, new_keys: Any, plan: LayerPlan, *, scale: float, sink: Tensor) -> Tensor:
        keys, index = new_keys, self._window_index
        if plan.kv_source is not None:
            if plan.kv_source not in self._main:
                self._main[plan.kv_source] = self._gather("main", plan.kv_source, plan.ratio)
            keys, index = torch.cat([keys, self._main[plan.kv_source]]), self._attend_index
        out, _ = self._attn.sparse_prefill(q, keys, index, scale=scale, sink=sink)
        return out  # type: ignore[no-any-return]
