"""The query rows of a prefill step: all of them, or those that the decoder half runs (``spec/model.md`` 5.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen
from torch import Tensor


@frozen(eq=False)
class QueryRows:
    """``index``: i32 ``[rows]`` of the step's rows, ascending; None: all. ``pivots``: i32 ``[rows, 4]``, runs of their
    windows in a buffer of history and new rows. ``ks``, ``ke``: i32 ``[rows]`` of each ratio."""

    index: Tensor | None
    count: int
    positions: Tensor
    slot_swa: Tensor
    pivots: Tensor
    ks: Mapping[int, Tensor]
    ke: Mapping[int, Tensor]

    @classmethod
    def all_of(cls, inputs: Any) -> QueryRows:
        i = inputs
        return cls(None, int(i.total_q), i.positions, i.slot_swa, i.swa_pivots, i.ks or {}, i.ke or {})

    @classmethod
    def kept_by(cls, inputs: Any) -> QueryRows | None:
        """Those of the decoder half; None: the step knows no such thing."""
        i = inputs
        if i.rp_swa_pivots is None:
            return None
        if i.rp_query_index is None:  # mode mask: all rows, of which those in front see no window
            return cls(None, int(i.total_q), i.positions, i.slot_swa, i.rp_swa_pivots, i.ks or {}, i.ke or {})
        total = int(i.rp_total_q)
        return cls(
            i.rp_query_index, total, i.rp_positions, i.rp_slot_swa, i.rp_swa_pivots, i.rp_ks or {}, i.rp_ke or {}
        )
