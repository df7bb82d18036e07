"""Integer metadata: index rows and slots from compact fields (``spec/kernels.md`` 2.5, ``spec/engine.md`` 3.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from deepinfer_cpu.contracts import check_like, shape_error

PLACEHOLDER_QUERY = 998244353
"""Query index of a row that belongs to no request."""


def _columns(name: str, rows: Tensor, count: int) -> None:
    if rows.dim() != 2 or rows.shape[1] != count:
        raise shape_error(name, "rows", f"[T, {count}]", list(rows.shape))


def window_index_prefill(pivots: Tensor, width: int) -> Tensor:
    """``pivots`` int32 ``[T, 4]`` = (a, n_a, b, n_b) -> ``a .. a+n_a-1, b .. b+n_b-1``, then -1; ``[T, width]``."""
    _columns("meta.window_index_prefill", pivots, 4)
    a, n_a, b, n_b = pivots.unsqueeze(-1).unbind(1)
    k = torch.arange(width, dtype=torch.int32, device=pivots.device)
    index = torch.where(k < n_a, a + k, b + (k - n_a))
    return index.masked_fill_(k >= n_a + n_b, -1)


def window_index_decode(offset_len: Tensor, ring: int, width: int) -> Tensor:
    """(slot of the window's first token, length) ``[T, 2]`` -> slots wrapping inside one ring, -1 beyond the length."""
    _columns("meta.window_index_decode", offset_len, 2)
    start, length = offset_len[:, :1], offset_len[:, 1:]
    k = torch.arange(width, dtype=torch.int32, device=offset_len.device)
    inside = start % ring
    index = (start - inside) + (inside + k) % ring
    return index.masked_fill_(k >= length, -1)


def compressed_index(
    offset_len: Tensor,
    width: int,
    *,
    base: int = 0,
    block_table: Tensor | None = None,
    per_block: int = 0,
) -> Tensor:
    """(offset, length) ``[T, 2]`` -> ``base + offset + 0 ..``, -1 beyond; int32 ``[T, width]``.

    With ``block_table`` ``[T, MB]`` the offsets lie in expanded table space (row t begins at ``t * MB * per_block``)
    and the result is physical slots.
    """
    _columns("meta.compressed_index", offset_len, 2)
    k = torch.arange(width, dtype=torch.int32, device=offset_len.device)
    beyond = k >= offset_len[:, 1:]
    index = offset_len[:, :1] + k
    if block_table is not None:
        flat = block_table.reshape(-1)
        page = index.div(per_block, rounding_mode="floor").clamp_(max=flat.numel() - 1)
        index = flat[page.long()] * per_block + index % per_block
    return (index + base).to(torch.int32).masked_fill_(beyond, -1)


def index_cat(window: Tensor, compressed: Tensor, offset: int) -> Tensor:
    """``[window | compressed + offset]``, -1 kept; int32 ``[T, W + k]``."""
    if window.shape[0] != compressed.shape[0]:
        raise shape_error("meta.index_cat", "compressed", f"{window.shape[0]} rows", list(compressed.shape))
    return torch.cat([window, torch.where(compressed < 0, compressed, compressed + offset)], dim=1)


def logical_to_slot(entries: Tensor, block_table: Tensor, per_block: int, *, context: Tensor | None = None) -> Tensor:
    """Logical entries ``[T, k]`` -> physical slots through ``block_table`` ``[T, MB]``; negative stays -1.

    Entries at or past ``context`` ``[T]`` become -1 too.
    """
    if entries.shape[0] != block_table.shape[0]:
        raise shape_error("meta.logical_to_slot", "block_table", f"{entries.shape[0]} rows", block_table.shape[0])
    if context is not None:
        check_like("meta.logical_to_slot", "context", context, entries.shape[:1])
    absent = entries < 0
    if context is not None:
        absent |= entries >= context.unsqueeze(1)
    known = entries.masked_fill(absent, 0).long()
    page = known // per_block
    slots = block_table.gather(1, page) * per_block + (known - page * per_block)
    return slots.to(torch.int32).masked_fill_(absent, -1)


def block_tables(tables: Tensor, query_indices: Tensor) -> Tensor:
    """Tables of requests ``[N, MB]`` -> one row a token ``[T, MB]``; placeholders get zeros (the null block)."""
    return gather_rows(tables, query_indices)


def gather_rows(x: Tensor, idx: Tensor) -> Tensor:
    """``x[idx[i]]``, zeros where ``idx[i]`` is out of range; any dtype."""
    if idx.dim() != 1:
        raise shape_error("meta.gather_rows", "idx", "[n]", list(idx.shape))
    outside = (idx < 0) | (idx >= x.shape[0])
    rows = x[idx.long().masked_fill(outside, 0)] if x.shape[0] else x.new_zeros(idx.shape[0], *x.shape[1:])
    return rows.masked_fill_(outside.view(-1, *[1] * (x.dim() - 1)), 0)


def decode_metadata(
    seqlens_q: Tensor,
    seqlens_k: Tensor,
    block_tables: Tensor,
    state_slot: Tensor,
    swa_slot: Tensor,
    *,
    block_size: int,
    window: int,
    ring: int,
    ratios_sparse: Sequence[int] = (),
    ratios_dense: Sequence[int] = (),
    valid: Tensor | None = None,
) -> Mapping[str, Tensor | Mapping[int, Tensor]]:
    """Expand per-request decode fields to per-row ones, under the field names of InputMetadata.

    :param seqlens_q: int32 ``[N]`` rows of each request; ``seqlens_k`` int32 ``[N]`` lengths with them.
    :param block_tables: int32 ``[N, MB]``; ``state_slot`` and ``swa_slot`` int32 ``[N]``.
    :param valid: bool ``[T]``, False marks placeholder rows; None means all are real: the op waits for the device
        to learn how many there are.
    """
    n, device = seqlens_q.shape[0], seqlens_q.device
    for name, per_request in (("seqlens_k", seqlens_k), ("state_slot", state_slot), ("swa_slot", swa_slot)):
        check_like("meta.decode_metadata", name, per_request, (n,))
    if block_tables.dim() != 2 or block_tables.shape[0] != n:
        raise shape_error("meta.decode_metadata", "block_tables", f"[{n}, MB]", list(block_tables.shape))
    total = None if valid is None else valid.shape[0]
    rows = torch.repeat_interleave(torch.arange(n, dtype=torch.int32, device=device), seqlens_q, output_size=total)
    r = rows.long()
    first = torch.cumsum(seqlens_q, 0, dtype=torch.int32) - seqlens_q
    t = torch.arange(rows.shape[0], dtype=torch.int32, device=device)
    positions = seqlens_k[r] - seqlens_q[r] + (t - first[r])
    mask = torch.ones(rows.shape[0], dtype=torch.bool, device=device) if valid is None else valid
    context = positions + 1
    tables = block_tables[r]
    out: dict[str, Tensor | Mapping[int, Tensor]] = {
        "cu_seqlens_q_incl": first + seqlens_q,
        "positions": positions,
        "valid_token_mask": mask,
        "query_indices": rows.masked_fill(~mask, PLACEHOLDER_QUERY),
        "context_lens": context,
        "block_tables": tables,
        "state_slot_idx": state_slot[r],
        "swa_slot_idx": swa_slot[r],
    }
    if window:
        length = context.clamp(max=window)
        base = swa_slot[r] * ring
        out["swa_offset_len"] = torch.stack([base + (context - length) % ring, length], dim=1)
        out["slot_swa"] = (base + positions % ring).masked_fill_(~mask, -1)
    positions_c: dict[int, Tensor] = {}
    slot_main: dict[int, Tensor] = {}
    klen: dict[int, Tensor] = {}
    ca: dict[int, Tensor] = {}
    for ratio in sorted({*ratios_sparse, *ratios_dense}):
        per_block = block_size // ratio
        entry = positions.div(ratio, rounding_mode="floor")
        done = (context % ratio == 0) & mask
        page = entry.div(per_block, rounding_mode="floor")
        slot = tables.gather(1, page.long().unsqueeze(1)).squeeze(1) * per_block + entry % per_block
        positions_c[ratio] = (entry * ratio).masked_fill_(~done, 0)
        slot_main[ratio] = slot.masked_fill_(~done, -1)
        visible = context.div(ratio, rounding_mode="floor")
        if ratio in ratios_sparse:
            klen[ratio] = visible
        if ratio in ratios_dense:
            ca[ratio] = torch.stack([t * (tables.shape[1] * per_block), visible], dim=1)
    out.update(positions_c=positions_c, slot_main=slot_main, klen=klen, ca_offset_len=ca)
    return out
