"""Index rows and slots in Python integers, one element after the other (``spec/kernels.md`` 2.5, ``engine.md`` 3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Rows = list[list[int]]

NO_REQUEST = 998244353
"""Query index of a row that belongs to no request."""


def _filled(values: list[int], width: int) -> list[int]:
    return (values + [-1] * width)[:width]


def window_index_prefill(pivots: Sequence[Sequence[int]], width: int) -> Rows:
    """Two runs (start, count) a row, one behind the other."""
    return [_filled([*range(a, a + n_a), *range(b, b + n_b)], width) for a, n_a, b, n_b in pivots]


def window_index_decode(offset_len: Sequence[Sequence[int]], ring: int, width: int) -> Rows:
    """Slots from a first one on; behind the last slot of its ring comes the first."""
    out = []
    for start, length in offset_len:
        bottom = start // ring * ring
        out.append(_filled([bottom + (start - bottom + k) % ring for k in range(min(length, width))], width))
    return out


def compressed_index(
    offset_len: Sequence[Sequence[int]],
    width: int,
    *,
    base: int = 0,
    tables: Sequence[Sequence[int]] | None = None,
    per_block: int = 0,
) -> Rows:
    """Consecutive indices; with tables an offset counts through the tables of all rows, laid end to end."""
    out = []
    for offset, length in offset_len:
        run = [offset + k for k in range(min(length, width))]
        if tables is not None:
            per_row = len(tables[0]) * per_block
            run = [tables[i // per_row][i % per_row // per_block] * per_block + i % per_block for i in run]
        out.append(_filled([base + i for i in run], width))
    return out


def index_cat(window: Sequence[Sequence[int]], compressed: Sequence[Sequence[int]], offset: int) -> Rows:
    return [[*w, *(c if c < 0 else c + offset for c in row)] for w, row in zip(window, compressed, strict=True)]


def logical_to_slot(
    entries: Sequence[Sequence[int]],
    tables: Sequence[Sequence[int]],
    per_block: int,
    context: Sequence[int] | None = None,
) -> Rows:
    """Entry e lies in block ``table[e // per_block]``; none, or one that is not there yet, is -1."""
    out = []
    for t, row in enumerate(entries):
        known = [e >= 0 and (context is None or e < context[t]) for e in row]
        out.append(
            [
                tables[t][e // per_block] * per_block + e % per_block if ok else -1
                for e, ok in zip(row, known, strict=True)
            ]
        )
    return out


def block_tables(tables: Sequence[Sequence[int]], query_indices: Sequence[int]) -> Rows:
    """The table of each row's request; a row of no request has the null block everywhere."""
    nothing = [0] * (len(tables[0]) if tables else 0)
    return [list(tables[i]) if 0 <= i < len(tables) else nothing for i in query_indices]


def decode_metadata(
    seqlens_q: Sequence[int],
    seqlens_k: Sequence[int],
    tables: Sequence[Sequence[int]],
    state_slot: Sequence[int],
    swa_slot: Sequence[int],
    *,
    block_size: int,
    window: int,
    ring: int,
    ratios_sparse: Sequence[int],
    ratios_dense: Sequence[int],
    valid: Sequence[bool] | None = None,
) -> dict[str, Any]:
    """Every field of every row by the slot arithmetic of ``engine.md`` 3.4."""
    ratios = sorted({*ratios_sparse, *ratios_dense})
    names = (
        "positions valid_token_mask query_indices context_lens block_tables state_slot_idx swa_slot_idx "
        "swa_offset_len slot_swa"
    )
    out: dict[str, Any] = {name: [] for name in names.split()}
    out["cu_seqlens_q_incl"] = [sum(seqlens_q[: i + 1]) for i in range(len(seqlens_q))]
    out |= {"positions_c": {r: [] for r in ratios}, "slot_main": {r: [] for r in ratios}}
    out |= {"klen": {r: [] for r in ratios_sparse}, "ca_offset_len": {r: [] for r in ratios_dense}}
    if not window:
        del out["swa_offset_len"], out["slot_swa"]
    row = 0
    for i, count in enumerate(seqlens_q):
        for j in range(count):
            p = seqlens_k[i] - count + j
            real = valid is None or valid[row]
            out["positions"].append(p)
            out["context_lens"].append(p + 1)
            out["valid_token_mask"].append(real)
            out["query_indices"].append(i if real else NO_REQUEST)
            out["block_tables"].append(list(tables[i]))
            out["state_slot_idx"].append(state_slot[i])
            out["swa_slot_idx"].append(swa_slot[i])
            if window:
                first = max(0, p - window + 1)
                out["swa_offset_len"].append([swa_slot[i] * ring + first % ring, p - first + 1])
                out["slot_swa"].append(swa_slot[i] * ring + p % ring if real else -1)
            for r in ratios:
                per_block, entry = block_size // r, p // r
                ends = (p + 1) % r == 0 and real
                out["positions_c"][r].append(entry * r if ends else 0)
                slot = tables[i][entry // per_block] * per_block + entry % per_block if ends else -1
                out["slot_main"][r].append(slot)
                if r in ratios_sparse:
                    out["klen"][r].append((p + 1) // r)
                if r in ratios_dense:
                    out["ca_offset_len"][r].append([row * len(tables[i]) * per_block, (p + 1) // r])
            row += 1
    return out
