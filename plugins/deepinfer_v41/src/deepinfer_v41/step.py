"""What the layers of one step share: index arrays made once, and the values that flow from layer to layer.

Prefill and decode differ only here (``prefill.py``, ``decode.py``): where keys lie and how rows name them. So does the
block of the draft head (``draft_step.py``), whose layers know no compressed entries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from deepinfer_contracts import InputMetadataV41
from deepinfer_core.interfaces import Backend, Caches
from deepinfer_v41.layer_plan import LayerPlan
from deepinfer_v41.layers.rope import RopeTables

Rope = Any
CacheView = Any


class Step(ABC):
    """Rows that attend to a window of keys: what every kind of step has."""

    def __init__(self, inputs: InputMetadataV41 | None, caches: Caches, backend: Backend, ropes: RopeTables) -> None:
        self.inputs: Any = inputs  # the fields of a bound record are tensors, those of this phase are present
        self.taps: list[Tensor] | None = None
        """Where drafts are made: the mean stream ``[T, D]`` before each layer that the draft head reads."""
        self._view: Any = caches.view
        self._attn = backend.attn  # type: ignore[attr-defined]
        self._fused = backend.transform.fused  # type: ignore[attr-defined]
        self._meta = backend.meta  # type: ignore[attr-defined]
        self._ropes = ropes
        self._on_host = backend.device.type == "cpu"
        self._rope: dict[int, Rope] = {}

    def view(self, name: str, layer: int | None) -> CacheView:
        """The entries of cache ``name`` at its owner ``layer``."""
        return self._view(name, layer)

    @property
    def positions(self) -> Tensor:
        """i32 ``[T]``."""
        positions: Tensor = self.inputs.positions
        return positions

    @property
    def valid(self) -> Tensor | None:
        """bool ``[T]``: rows that belong to a request; None: all, or it does not matter."""
        return None

    @property
    def force_random(self) -> Tensor | None:
        """Rows whose experts are drawn (load balancing); None on one device."""
        rows: Tensor | None = self.inputs.gate_force_random
        return rows

    @property
    def slot_swa(self) -> Tensor:
        """i32 ``[T]``: where the rows' window keys go; -1: nowhere."""
        slots: Tensor = self.inputs.slot_swa
        return slots

    def rope(self, ratio: int) -> Rope:
        """Angles of the rows' own positions."""
        kind = 1 if ratio else 0
        if kind not in self._rope:
            self._rope[kind] = self._ropes.rows(ratio, self.positions)
        return self._rope[kind]

    @abstractmethod
    def store_window(self, kv: Tensor, norm: Any, turn: Rope, layer: int) -> Tensor | None:
        """Norm, rotate and store this step's window keys; returns them as stored where attention wants a copy."""

    @abstractmethod
    def attend(self, q: Tensor, new_keys: Any, plan: LayerPlan, *, scale: float, sink: Tensor) -> Tensor:
        """``q [T, heads, width]`` -> the same shape. ``new_keys`` is what ``store_window`` returned."""


class BackboneStep(Step):
    """One forward pass of the backbone. Selection and candidates are single slots: the next source overwrites them."""

    state_dtype = torch.float32

    def __init__(self, inputs: InputMetadataV41, caches: Caches, backend: Backend, ropes: RopeTables) -> None:
        super().__init__(inputs, caches, backend, ropes)
        self.candidates: Tensor | None = None
        """i32 ``[T, blocks]`` ascending, -1 padded; None before the candidate source ran."""
        self._cache = backend.cache  # type: ignore[attr-defined]
        self._compress = backend.compress  # type: ignore[attr-defined]
        self._index = backend.index  # type: ignore[attr-defined]
        self._entry_rope: dict[int, Rope] = {}

    is_bounded = False
    """Bounded replay: the rows of the decoder half differ from those in front of it, in number or in windows."""
    needs_decoder = True
    """Something reads what the decoder half computes; if not, it need not run."""

    def enter_decoder(self) -> Tensor | None:
        """The global keys are complete: the step's rows become those of the decoder half.

        Returns which of the rows before they are, i32 ascending; None: all of them.
        """
        return None

    def spread(self, hidden: Tensor) -> Tensor:
        """``hidden [rows, D]`` of the rows that are left -> ``[T, D]``, 0 where a row was left out."""
        return hidden

    def entry_rope(self, ratio: int) -> Rope:
        """Angles of the entries that this step completes."""
        if ratio not in self._entry_rope:
            self._entry_rope[ratio] = self._ropes.rows(ratio, self.inputs.positions_c[ratio])
        return self._entry_rope[ratio]

    def entry_slots(self, ratio: int) -> Tensor:
        slots: Tensor = self.inputs.slot_main[ratio]
        return slots

    @abstractmethod
    def compress(self, score: Tensor, latent: Tensor, state: Tensor, ratio: int, dtype: torch.dtype) -> Tensor:
        """Latents of the entries, one row for each of ``entry_slots``; updates the rings."""

    @abstractmethod
    def visible(self, ratio: int) -> Tensor:
        """i32 ``[T]``: entries a row may see."""

    @abstractmethod
    def scores(self, q: Any, weight: Tensor, plan: LayerPlan, candidates: Tensor | None, block: int) -> Tensor:
        """Index scores, column = entry id; f32 ``[T, columns]``."""

    @abstractmethod
    def select(self, entries: Tensor, plan: LayerPlan) -> None:
        """Make ``entries`` (i32 ``[T, K]``, ids ascending, -1 padded) the selection of this and the reusing layers."""
