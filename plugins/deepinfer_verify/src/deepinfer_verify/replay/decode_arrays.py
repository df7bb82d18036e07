"""The arrays of a decode step, turned into what each row sees and stores, beside the rule.

No mode has a part in it: if a row in front of the kept ones were needed here, its place would hold nothing, or what
nobody may read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deepinfer_verify.replay.beside import Beside, Caches, StepRow
from deepinfer_verify.replay.rule import decode_window


def read_decode(rows: Sequence[StepRow], m: Any, caches: Caches, beside: Beside) -> None:
    """Row by row: it stores, then it sees."""
    at = 0
    for row in rows:
        row.add_drafts(m.input_ids[at + 1 : at + row.end - row.begin].tolist())
        for position in range(row.begin, row.end):
            _row(row, position, m, at, caches, beside)
            at += 1


def _row(row: StepRow, position: int, m: Any, at: int, caches: Caches, beside: Beside) -> None:
    where, ring = f"decode row at position {position}", beside.geometry.ring
    slot = int(m.slot_swa[at])
    beside.slot("decode slots", row, where, position, True, slot)
    if slot >= 0:
        caches.encoder[slot] = caches.decoder[slot] = row.values[position]
    for ratio, held in caches.keys.items():
        expected = beside.key_slot(row, position // ratio, ratio) if (position + 1) % ratio == 0 else -1
        found = int(m.slot_main[ratio][at])
        beside.findings.check("key slots", row.case, f"{where}, slot of ratio {ratio}", expected, found)
        if found >= 0:
            held[found] = row.shared[position]
        count = int(m.klen[ratio][at])
        if ratio in beside.dense:
            dense = int(m.ca_offset_len[ratio][at, 1])
            beside.findings.check("visible keys", row.case, f"{where}, keys of ratio {ratio}", count, dense)
        seen = held[[beside.key_slot(row, key, ratio) for key in range(count)]]
        beside.keys(row, where, ratio, (position + 1) // ratio, [(0, count)], seen)
    first, count = m.swa_offset_len[at].tolist()
    places = first // ring * ring + (first + np.arange(count)) % ring
    for half, cache in (("encoder", caches.encoder), ("decoder", caches.decoder)):
        window = decode_window(position, beside.geometry)
        beside.window("decode windows", row, f"{where}, {half}", window, cache[places])
