"""The rows and windows of the decoder half, written plainly: the ``rp_`` fields of ``InputMetadataV41``.

The slow version that the C packer is compared to (``spec/model.md`` 5.3, ``spec/engine.md`` 3.7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deepinfer_contracts import ReplayMode

if TYPE_CHECKING:
    from deepinfer_native.reference_pack import Geometry, Row


def kept_positions(row: Row, inputs: ReplayMode) -> range:
    """Positions of a chunk that the decoder half runs: those from ``keep_from`` on, and never none of them."""
    if inputs != ReplayMode.COMPACT or row.replay_mode != ReplayMode.COMPACT:
        return range(row.start, row.end)
    clip = min(max(row.keep_from - row.start, 0), row.q - 1)
    return range(row.start + clip, row.end)


def pack_replay(rows: Sequence[Row], g: Geometry, encoder: Mapping[str, Any]) -> dict[str, object]:
    """The fields, from those of all rows (``encoder``)."""
    query: list[int] = []
    positions: list[int] = []
    counts: list[int] = []
    pivots: list[list[int]] = []
    slots: list[int] = []
    offset = 0
    for i, row in enumerate(rows):
        kept = kept_positions(row, g.replay_mode)
        floor = max(row.swa_valid_start, row.keep_from)
        history = range(max(0, row.start - g.window), row.start)
        before = len(positions)
        for p in kept:
            visible = [x for x in range(p - g.window + 1, p + 1) if x >= floor]
            old = [x for x in visible if x in history]
            new = [x for x in visible if x in kept]
            a = (i + 1) * g.window - len(old) if old else 0
            b = len(rows) * g.window + before + (new[0] - kept.start) if new else 0
            pivots.append([a, len(old), b, len(new)])
            query.append(offset + p - row.start)
            stored = p >= row.keep_from and p >= row.end - g.swa_ring
            slots.append(row.swa_slot * g.swa_ring + p % g.swa_ring if stored else -1)
        positions += kept
        counts.append(len(kept))
        offset += row.q
    out: dict[str, object] = {"rp_floor": _i32([row.keep_from for row in rows])}
    out["rp_swa_pivots"] = _i32(pivots).reshape(-1, 4)
    if g.replay_mode != ReplayMode.COMPACT:
        return out
    out |= {
        "rp_query_index": _i32(query),
        "rp_cu_q": _i32(np.concatenate([[0], np.cumsum(counts)])),
        "rp_positions": _i32(positions),
        "rp_slot_swa": _i32(slots),
        "rp_total_q": len(positions),
        "rp_num_live": sum(p >= row.keep_from for row in rows for p in kept_positions(row, g.replay_mode)),
    }
    for name in ("ks", "ke", "ca_offset_len"):
        out[f"rp_{name}"] = {ratio: array[query] for ratio, array in encoder[name].items()}
    return out


def _i32(values: object) -> npt.NDArray[np.int32]:
    return np.asarray(values, dtype=np.int32)
