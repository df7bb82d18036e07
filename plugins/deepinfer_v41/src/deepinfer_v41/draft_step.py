"""The block of the draft head: a few rows a request behind its last known position (``spec/model.md`` 2.11).

Each row attends to the window of main keys, which lie in the rings of the draft stages, and to all rows of its own
block, later ones included. The keys of the block go to entries of their own (``caches/draft_block.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.interfaces import Backend, Caches
from deepinfer_v41.caches import draft_block
from deepinfer_v41.config import V41Config
from deepinfer_v41.layer_plan import LayerPlan
from deepinfer_v41.layers.rope import RopeTables
from deepinfer_v41.step import Rope, Step


class DraftStep(Step):
    """:param rows: What ``meta.draft_inputs`` made for the step."""

    force_random = None

    def __init__(
        self,
        caches: Caches,
        backend: Backend,
        ropes: RopeTables,
        config: V41Config,
        rows: Mapping[str, Tensor],
    ) -> None:
        super().__init__(None, caches, backend, ropes)  # what a block reads of its step is in the rows
        self._rows = rows
        self._plan = self._attn.plan()
        self._block = self.view(draft_block.NAME, draft_block.layer(config))

    @property
    def positions(self) -> Tensor:
        return self._rows["positions"]

    def store_window(self, kv: Tensor, norm: Any, turn: Rope, layer: int) -> None:
        self._fused(kv, norm=norm, rope=(turn, False), store=(self._block, self._rows["slot_draft"]))

    def attend(self, q: Tensor, new_keys: Any, plan: LayerPlan, *, scale: float, sink: Tensor) -> Tensor:
        out, _ = self._attn.sparse_decode(
            q,
            self.view("swa", plan.layer),
            self._rows["window_index"],
            plan=self._plan,
            scale=scale,
            sink=sink,
            extra=self._block,
            extra_idx=self._rows["draft_index"],
        )
        return out  # type: ignore[no-any-return]


def last_known(inputs: Any, accepted: Tensor | None) -> tuple[Tensor, Tensor]:
    """Of each request of a step: the last position that stays, int32 ``[N]``, and its window slot, int32 ``[N]``.

    ``accepted``: drafts that were accepted; those behind them are rolled back. None in prefill.
    """
    if inputs.is_prompt:
        ends = inputs.cu_seqlens_k[1:] - inputs.cu_seqlens_k[:-1]
        return ends - 1, inputs.swa_slot_idx
    lengths = inputs.seqlens_q
    first = inputs.cu_seqlens_q_incl - lengths
    kept = torch.zeros_like(lengths) if accepted is None else accepted.reshape(-1).to(torch.int32)
    last = inputs.seqlens_k - lengths + torch.minimum(kept.clamp(min=0), lengths - 1)
    return last, torch.index_select(inputs.swa_slot_idx, 0, first)
