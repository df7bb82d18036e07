"""The arrays of a prefill step, turned into what each row sees and stores, beside the rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from deepinfer_verify.replay.beside import Beside, Caches, StepRow
from deepinfer_verify.replay.contents import UNUSED, Values, gather
from deepinfer_verify.replay.rule import Mode, Row, rows_of

I32 = npt.NDArray[np.int32]


@frozen
class _Place:
    """One row of the step, and what the rule says of it."""

    owner: StepRow
    rule: Row

    @property
    def text(self) -> str:
        return f"position {self.rule.position} of {self.owner.chunk}"


def read_prefill(rows: Sequence[StepRow], m: Any, engine: Mode, caches: Caches, beside: Beside) -> None:
    """In the order of a forward: keys are stored, rows see, windows are stored."""
    geometry = beside.geometry
    for row in rows:
        _admission(row, beside)
        _store_keys(row, m, caches, beside)
    history = len(rows) * geometry.window
    encoder, decoder = (gather(c, m.load_swa, geometry.ring, history) for c in (caches.encoder, caches.decoder))
    keys = {
        ratio: gather(held, m.load_main[ratio], geometry.block // ratio, int(m.total_k_main[ratio]))
        for ratio, held in caches.keys.items()
    }
    places = [_Place(row, rule) for row in rows for rule in rows_of(row.request.prompt, row.begin, row.end, geometry)]
    new = np.concatenate([row.own for row in rows])
    for at, place in enumerate(places):
        seen = _two_runs(m.swa_pivots[at], encoder, new)
        beside.window("encoder windows", place.owner, f"{place.text}, encoder", place.rule.encoder_window, seen)
        _see_keys(place, f"{place.text}, encoder", m, at, "", keys, beside)
        slot, stores = int(m.slot_swa[at]), place.rule.stores_window
        beside.slot("encoder slots", place.owner, f"{place.text}, encoder", place.rule.position, stores, slot)
    kept = _kept(rows, places, m, beside) if engine == "compact" else np.arange(len(places), dtype=np.int32)
    pivots = m.swa_pivots if engine == "off" else m.rp_swa_pivots
    slots = m.rp_slot_swa if engine == "compact" else m.slot_swa
    for at, index in enumerate(kept.tolist()):
        place, where = places[index], f"{places[index].text}, decoder"
        if place.rule.decoder_window is not None:
            seen = _two_runs(pivots[at], decoder, new[kept])
            beside.window("decoder windows", place.owner, where, place.rule.decoder_window, seen)
        if engine == "compact":
            _see_keys(place, where, m, at, "rp_", keys, beside)
            stores_decoder = place.rule.stores_decoder_window
            if stores_decoder is not None:
                slot = int(slots[at])
                beside.slot("decoder slots", place.owner, where, place.rule.position, stores_decoder, slot)
    _store_windows(places, kept, m.slot_swa, slots, caches, beside)


def _admission(row: StepRow, beside: Beside) -> None:
    """Where a request begins, and what it skips."""
    if row.request.is_admitted:
        return
    row.request.is_admitted = True
    prompt = row.request.prompt
    expected = (prompt.start, prompt.start, prompt.start, prompt.hit - prompt.start)
    found = (row.begin, row.valid_start, row.hit_tokens, row.replayed_tokens)
    beside.findings.check("hits", row.case, "(start, first window key, skipped, run again)", expected, found)


def _store_keys(row: StepRow, m: Any, caches: Caches, beside: Beside) -> None:
    hit = row.request.prompt.hit
    for ratio, held in caches.keys.items():
        begin, end = m.cu_compressed_q[ratio][row.index : row.index + 2].tolist()
        found = list(zip(m.positions_c[ratio][begin:end].tolist(), m.slot_main[ratio][begin:end].tolist(), strict=True))
        made = range(row.begin // ratio, row.end // ratio)
        expected = [(j * ratio, beside.key_slot(row, j, ratio) if j * ratio >= hit else -1) for j in made]
        where = f"(position, slot) of keys of ratio {ratio} that {row.chunk} stores"
        beside.findings.check("key slots", row.case, where, expected or [(0, -1)], found)
        for position, slot in found:
            if slot >= 0:
                held[slot] = row.shared[position + ratio - 1]


def _see_keys(place: _Place, where: str, m: Any, at: int, prefix: str, keys: dict[int, Values], beside: Beside) -> None:
    ks, ke, dense = (getattr(m, f"{prefix}{name}") for name in ("ks", "ke", "ca_offset_len"))
    for ratio, count in place.rule.keys.items():
        spans = [(int(ks[ratio][at]), int(ke[ratio][at]))]
        if ratio in beside.dense:
            start, length = dense[ratio][at].tolist()
            spans.append((start, start + length))
        beside.keys(place.owner, where, ratio, count, spans, keys[ratio])


def _kept(rows: Sequence[StepRow], places: Sequence[_Place], m: Any, beside: Beside) -> I32:
    """Indices of the rows that the decoder half runs, as the arrays say."""
    first = 0
    for row in rows:
        own = places[first : first + row.end - row.begin]
        expected = [place.rule.position for place in own if place.rule.decoder_window is not None]
        begin, end = m.rp_cu_q[row.index : row.index + 2].tolist()
        where = f"rows of {row.chunk} that the decoder half runs"
        beside.findings.check("kept rows", row.case, where, expected, m.rp_positions[begin:end].tolist())
        indices = (m.rp_query_index[begin:end] - first + row.begin).tolist()
        beside.findings.check("kept rows", row.case, f"{where}, by index", expected, indices)
        first += len(own)
    beside.findings.check("kept rows", rows[0].case, "their number in the step", len(m.rp_query_index), m.rp_total_q)
    kept: I32 = m.rp_query_index
    return kept


def _store_windows(
    places: Sequence[_Place], kept: I32, encoder: I32, decoder: I32, caches: Caches, beside: Beside
) -> None:
    for place, slot in zip(places, encoder.tolist(), strict=True):
        if slot >= 0:
            caches.encoder[slot] = place.owner.values[place.rule.position]
    for index, slot in zip(kept.tolist(), decoder.tolist(), strict=True):
        owner, position = places[index].owner, places[index].rule.position
        if slot >= 0:
            is_live = position >= owner.request.prompt.floor(beside.geometry)
            caches.decoder[slot] = owner.values[position] if is_live else UNUSED


def _two_runs(pivots: I32, old: Values, new: Values) -> Values:
    """What the two runs ``(start, length)`` of a row's window hold, in the buffer of history rows and new rows."""
    a, a_length, b, b_length = pivots.tolist()
    return np.concatenate([old[a : a + a_length], new[b - len(old) : b - len(old) + b_length]])
