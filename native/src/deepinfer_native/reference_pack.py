"""The packer, written plainly: what ``InputMetadataV41`` holds for a step, one request at a time.

This is the slow version that the C packer is compared to (``spec/engine.md`` 3.4, 6.2-6.4). It returns host arrays by
field name; arrays keyed by ratio are dicts ``{ratio: array}``. Fields that the backend builds (``block_tables`` and the
expanded index arrays) are not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

from deepinfer_contracts import ReplayMode
from deepinfer_native.reference_replay import pack_replay

I32 = npt.NDArray[np.int32]
PLACEHOLDER_QUERY = 998244353


@frozen
class Geometry:
    """Sizes that do not change during a run (symbols of ``spec/engine.md`` 0.1 in brackets)."""

    block_size: int = 128  # [BS]
    window: int = 0  # [W]
    swa_ring: int = 0  # [SW]
    ratios_sparse: tuple[int, ...] = ()
    ratios_dense: tuple[int, ...] = ()
    max_blocks: int = 64  # [MB]
    ngram: int = 0  # [G]
    ngram_table: I32 | None = None
    ngram_pad: int = 0
    replay_mode: ReplayMode = ReplayMode.OFF  # which rp_ fields there are (3.7)

    @property
    def ratios(self) -> tuple[int, ...]:
        return tuple(sorted({*self.ratios_sparse, *self.ratios_dense}))


@define
class Row:
    """One request of a step: it runs positions ``[start, start + q)`` of ``tokens``."""

    tokens: Sequence[int]
    start: int
    q: int
    block_table: Sequence[int] = field(factory=list)
    swa_slot: int = 0
    state_slot: int = 0
    swa_valid_start: int = 0
    store_from: int = 0  # positions below lie in shared blocks: no store (spec/engine.md 2.10)
    keep_from: int = 0  # first position of the decoder half (3.7)
    replay_mode: ReplayMode = ReplayMode.OFF  # of the request, at most that of the geometry

    @property
    def end(self) -> int:
        return self.start + self.q


def ngram_window(row: Row, p: int, g: Geometry) -> list[int]:
    """Compressed ids of tokens ``p, p-1, ...``; a negative table entry (image) or the start latches to pad (6.4)."""
    out: list[int] = []
    dead = False
    for back in range(g.ngram):
        x = p - back
        ident = -1
        if x >= 0 and g.ngram_table is not None:
            token = row.tokens[x]
            ident = int(g.ngram_table[token]) if 0 <= token < len(g.ngram_table) else -1
        dead = dead or ident < 0
        out.append(g.ngram_pad if dead else ident)
    return out


def _common(rows: Sequence[Row], g: Geometry) -> dict[str, object]:
    positions = [p for r in rows for p in range(r.start, r.end)]
    out: dict[str, object] = {
        "num_reqs": len(rows),
        "total_q": len(positions),
        "input_ids": i32([r.tokens[p] for r in rows for p in range(r.start, r.end)]),
        "positions": i32(positions),
        "slot_swa": None,
    }
    if g.ngram:
        grams = [ngram_window(r, p, g) for r in rows for p in range(r.start, r.end)]
        out["ngram_token_ids"] = i32(grams).reshape(len(grams), g.ngram)
    return out


def i32(values: object) -> I32:
    return np.asarray(values, dtype=np.int32)


def key_slot(row: Row, j: int, ratio: int, g: Geometry) -> int:
    """Row of compressed key ``j`` in MAIN and INDEX (3.4)."""
    per_block = g.block_size // ratio
    return row.block_table[j // per_block] * per_block + j % per_block


def pack_prefill(rows: Sequence[Row], g: Geometry) -> dict[str, object]:
    """Compact metadata of a prefill step."""
    out = _common(rows, g)
    n = len(rows)
    out["is_prompt"] = 1
    out["cu_seqlens_q"] = cumulative([r.q for r in rows])
    out["cu_seqlens_k"] = cumulative([r.end for r in rows])
    out["state_slot_idx"] = i32([r.state_slot for r in rows])
    out["swa_slot_idx"] = i32([r.swa_slot for r in rows])
    if g.window:
        _window_prefill(rows, g, out, n)
    per_ratio: dict[str, dict[int, I32]] = {k: {} for k in RATIO_FIELDS_PREFILL}
    totals: dict[int, int] = {}
    for ratio in g.ratios:
        _ratio_prefill(rows, ratio, g, per_ratio, totals)
    out.update(per_ratio)
    out["total_k_main"] = totals
    if g.replay_mode != ReplayMode.OFF:
        out.update(pack_replay(rows, g, out))
    return out


RATIO_FIELDS_PREFILL = (
    "positions_c",
    "slot_main",
    "cu_compressed_q",
    "load_main",
    "ks",
    "ke",
    "ca_offset_len",
)


def _window_prefill(rows: Sequence[Row], g: Geometry, out: dict[str, object], n: int) -> None:
    slots: list[int] = []
    pivots: list[list[int]] = []
    segments: list[list[int]] = []
    offset = 0  # of this request among the T new rows
    for i, r in enumerate(rows):
        # History: positions [start - W, start) go to buffer rows [i*W, (i+1)*W); absent ones are zero rows.
        first = max(r.start - g.window, r.swa_valid_start, 0)
        first = min(first, r.start)
        dst = i * g.window
        absent = g.window - (r.start - first)
        if absent:
            segments.append([-1, 0, absent, dst])
            dst += absent
        p = first
        while p < r.start:
            begin = p % g.swa_ring
            run = min(r.start - p, g.swa_ring - begin)
            segments.append([r.swa_slot, begin, begin + run, dst])
            dst += run
            p += run
        for p in range(r.start, r.end):
            # Only the last SW tokens of a chunk are stored; earlier ones would be overwritten.
            slots.append(r.swa_slot * g.swa_ring + p % g.swa_ring if p >= r.end - g.swa_ring else -1)
            low = max(p - g.window + 1, r.swa_valid_start, 0)
            old = max(0, r.start - low)
            a = i * g.window + (g.window - old) if old else 0
            new_first = max(low, r.start)
            b = n * g.window + offset + (new_first - r.start)
            pivots.append([a, old, b, p - new_first + 1])
        offset += r.q
    out["slot_swa"] = i32(slots)
    out["swa_pivots"] = i32(pivots).reshape(-1, 4)
    out["load_swa"] = i32(segments).reshape(-1, 4)
    out["total_k_swa"] = n * g.window


def _ratio_prefill(
    rows: Sequence[Row], ratio: int, g: Geometry, out: Mapping[str, dict[int, I32]], totals: dict[int, int]
) -> None:
    per_block = g.block_size // ratio
    positions: list[int] = []
    slots: list[int] = []
    counts: list[int] = []
    segments: list[list[int]] = []
    ks: list[int] = []
    ke: list[int] = []
    base = 0
    for r in rows:
        new = range(r.start // ratio, r.end // ratio)
        counts.append(max(1, len(new)))
        for j in new:
            positions.append(j * ratio)
            slots.append(key_slot(r, j, ratio, g) if j * ratio >= r.store_from else -1)
        if not new:
            positions.append(0)
            slots.append(-1)
        visible = r.end // ratio
        if visible == 0:
            segments.append([-1, 0, 1, base])
        for j in range(0, visible, per_block):
            segments.append([r.block_table[j // per_block], 0, min(per_block, visible - j), base + j])
        for p in range(r.start, r.end):
            ks.append(base)
            ke.append(base + (p + 1) // ratio)
        base += max(1, visible)
    out["positions_c"][ratio] = i32(positions)
    out["slot_main"][ratio] = i32(slots)
    out["cu_compressed_q"][ratio] = cumulative(counts)
    out["load_main"][ratio] = i32(segments).reshape(-1, 4)
    totals[ratio] = base
    if ratio in g.ratios_sparse:
        out["ks"][ratio] = i32(ks)
        out["ke"][ratio] = i32(ke)
    if ratio in g.ratios_dense:
        out["ca_offset_len"][ratio] = i32([[a, b - a] for a, b in zip(ks, ke, strict=True)]).reshape(-1, 2)


def pack_decode(rows: Sequence[Row], g: Geometry) -> dict[str, object]:
    """Compact metadata of a decode step; row ``j`` of a request sits at position ``start + j``."""
    out = _common(rows, g)
    tokens = [(i, r, p) for i, r in enumerate(rows) for p in range(r.start, r.end)]
    out["is_prompt"] = 0
    out["seqlens_q"] = i32([r.q for r in rows])
    out["seqlens_k"] = i32([r.end for r in rows])
    out["cu_seqlens_q_incl"] = cumulative([r.q for r in rows])[1:]
    out["valid_token_mask"] = np.ones(len(tokens), dtype=np.bool_)
    out["query_indices"] = i32([i for i, _, _ in tokens])
    out["context_lens"] = i32([p + 1 for _, _, p in tokens])
    out["state_slot_idx"] = i32([r.state_slot for _, r, _ in tokens])
    out["swa_slot_idx"] = i32([r.swa_slot for _, r, _ in tokens])
    if g.window:
        out["slot_swa"] = i32([r.swa_slot * g.swa_ring + p % g.swa_ring for _, r, p in tokens])
        spans = [(r.swa_slot, p, min(p + 1, g.window)) for _, r, p in tokens]
        out["swa_offset_len"] = i32([[w * g.swa_ring + (p - n + 1) % g.swa_ring, n] for w, p, n in spans])
    fields: dict[str, dict[int, I32]] = {k: {} for k in ("positions_c", "slot_main", "klen", "ca_offset_len")}
    for ratio in g.ratios:
        done = [(p + 1) % ratio == 0 for _, _, p in tokens]
        fields["positions_c"][ratio] = i32(
            [p // ratio * ratio if d else 0 for (_, _, p), d in zip(tokens, done, strict=True)]
        )
        fields["slot_main"][ratio] = i32(
            [key_slot(r, p // ratio, ratio, g) if d else -1 for (_, r, p), d in zip(tokens, done, strict=True)]
        )
        if ratio in g.ratios_sparse:
            fields["klen"][ratio] = i32([(p + 1) // ratio for _, _, p in tokens])
        if ratio in g.ratios_dense:
            step = g.max_blocks * (g.block_size // ratio)
            fields["ca_offset_len"][ratio] = i32([[t * step, (p + 1) // ratio] for t, (_, _, p) in enumerate(tokens)])
    out.update(fields)
    return out


def cumulative(counts: Sequence[int]) -> I32:
    """Exclusive prefix sums with the total at the end; starts with 0."""
    return i32(np.concatenate([[0], np.cumsum(counts)]))


@define
class FeedRow:
    """One request of a decode step at depth 2: what the host knows of it before the step in flight is committed."""

    tokens: Sequence[int]  # committed, prompt and output
    drafts: Sequence[int]  # K, from the last committed step; pad drafts where it had none
    is_mapped: bool  # the row continues the step in flight


def compressed(token: int, g: Geometry) -> int:
    """Compressed id of a token; -1 ends the look-back."""
    table = g.ngram_table
    return max(int(table[token]), -1) if table is not None and 0 <= token < len(table) else -1


def pack_feed(rows: Sequence[FeedRow], g: Geometry) -> dict[str, I32]:
    """``fresh_ids`` and ``ngram_win``: the host's half of the tokens of a decode step."""
    fresh = [[r.tokens[-1], *r.drafts] for r in rows]
    out = {"fresh_ids": i32(fresh)}
    if g.ngram:
        history = g.ngram - 1
        wins = []
        for r in rows:
            end = len(r.tokens) if r.is_mapped else len(r.tokens) - 1
            before = [compressed(r.tokens[x], g) if x >= 0 else -1 for x in range(end - history, end)]
            wins.append(before + [compressed(token, g) for token in r.drafts])
        out["ngram_win"] = i32(wins).reshape(len(rows), -1)
    return out


def complete_window(win: Sequence[int], current: Sequence[int], rejected: int, g: Geometry) -> list[list[int]]:
    """The device's half for one request: n-gram rows of its Q tokens, newest first (6.4).

    ``current``: the token to extend and its drafts. ``rejected``: drafts of the step before that were not accepted, K
    where the request continues no step.
    """
    num_draft = len(current) - 1
    rows = []
    for j in range(len(current)):
        out: list[int] = []
        for back in range(g.ngram):
            if j >= back:
                ident = compressed(current[j - back], g)
            else:
                ident = win[num_draft + g.ngram - 1 - rejected + j - back]
            is_dead = ident < 0 or (bool(out) and out[-1] < 0)
            out.append(-1 if is_dead else ident)
        rows.append([g.ngram_pad if ident < 0 else ident for ident in out])
    return rows
