"""Integer metadata: index rows and slots from compact fields (``spec/kernels.md`` 2.5, ``spec/engine.md`` 3.4).

Each op is one launch, where the plain op has up to sixty: they stand in every decode step, some of them outside of the
graph, where a launch costs the host more than the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from deepinfer_cuda.fits import int32
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tl.meta.decode import columns, decode_rows, layout
from deepinfer_cuda.tl.meta.slots import joined_rows, table_slots, window_rows, window_slots

BY_RATIO = ("positions_c", "slot_main", "klen", "ca_offset_len")
"""Fields with a tensor for each compression ratio."""


def window_index_prefill(pivots: Tensor, width: int) -> Tensor:
    """``pivots`` int32 ``[T, 4]`` = (a, n_a, b, n_b) -> ``a .. a+n_a-1, b .. b+n_b-1``, then -1; ``[T, width]``.

    :raises ShapeContractError: as the op of ``cpu``.
    """
    rows = pivots.shape[0] if pivots.dim() else 0
    if not rows or width < 1 or not int32(pivots, (rows, 4)):
        return plain_op("meta.window_index_prefill")(pivots, width)  # type: ignore[no-any-return]
    out = pivots.new_empty(rows, width)
    window_rows()(pivots, out)
    return out


def window_index_decode(offset_len: Tensor, ring: int, width: int) -> Tensor:
    """(slot of the window's first token, length) ``[T, 2]`` -> slots wrapping inside one ring, -1 beyond the length.

    :raises ShapeContractError: as the op of ``cpu``.
    """
    rows = offset_len.shape[0] if offset_len.dim() else 0
    if not rows or width < 1 or not int32(offset_len, (rows, 2)):
        return plain_op("meta.window_index_decode")(offset_len, ring, width)  # type: ignore[no-any-return]
    out = offset_len.new_empty(rows, width)
    window_slots()(offset_len, ring, out)
    return out


def index_cat(window: Tensor, compressed: Tensor, offset: int) -> Tensor:
    """``[window | compressed + offset]``, -1 kept; int32 ``[T, W + k]``.

    :raises ShapeContractError: as the op of ``cpu``.
    """
    matrices = window.dim() == compressed.dim() == 2
    rows, width = window.shape if matrices else (0, 0)
    known = rows and int32(window, (rows, width)) and int32(compressed, (rows, compressed.shape[1]))
    if not known or not width or not compressed.shape[1]:
        return plain_op("meta.index_cat")(window, compressed, offset)  # type: ignore[no-any-return]
    out = window.new_empty(rows, width + compressed.shape[1])
    joined_rows()(window, compressed, offset, out)
    return out


def logical_to_slot(entries: Tensor, block_table: Tensor, per_block: int, *, context: Tensor | None = None) -> Tensor:
    """Logical entries ``[T, k]`` -> physical slots through ``block_table`` ``[T, MB]``; negative stays -1.

    Entries at or past ``context`` ``[T]`` become -1 too.

    :raises ShapeContractError: as the op of ``cpu``.
    """
    matrices = entries.dim() == block_table.dim() == 2
    rows, k = entries.shape if matrices else (0, 0)
    known = rows and k and int32(entries, (rows, k)) and int32(block_table, (rows, block_table.shape[1]))
    if not known or not block_table.shape[1] or not (context is None or int32(context, (rows,))):
        return plain_op("meta.logical_to_slot")(entries, block_table, per_block, context=context)  # type: ignore[no-any-return]
    out = torch.empty_like(entries)
    launch = table_slots(bounded=context is not None)
    launch(entries, block_table, entries.view(-1)[:rows] if context is None else context, per_block, out)
    return out


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
    :param valid: bool ``[T]``, False marks placeholder rows; None means all are real: the plain op then waits for the
        device to learn how many there are.
    :raises ShapeContractError: as the op of ``cpu``.
    """
    n = seqlens_q.shape[0] if seqlens_q.dim() == 1 else 0
    per_request = (seqlens_q, seqlens_k, state_slot, swa_slot)
    known = n and block_tables.dim() == 2 and block_tables.shape[1] and valid is not None and valid.numel()
    known = known and int32(block_tables, (n, block_tables.shape[1])) and all(int32(x, (n,)) for x in per_request)
    if not known or valid is None or valid.dim() != 1 or valid.dtype != torch.bool or not valid.is_contiguous():
        return plain_op("meta.decode_metadata")(  # type: ignore[no-any-return]
            seqlens_q, seqlens_k, block_tables, state_slot, swa_slot, block_size=block_size, window=window, ring=ring,
            ratios_sparse=ratios_sparse, ratios_dense=ratios_dense, valid=valid,
        )  # fmt: skip
    total = valid.shape[0]
    sparse, dense = tuple(ratios_sparse), tuple(ratios_dense)
    places = layout(sparse, dense, window > 0)
    ends, tables = torch.empty_like(seqlens_q), block_tables.new_empty(total, block_tables.shape[1])
    fields = seqlens_q.new_empty(columns(places) * total)
    launch = decode_rows(sparse=sparse, dense=dense, windowed=window > 0)
    launch(seqlens_q, seqlens_k, block_tables, state_slot, swa_slot, valid.view(torch.uint8), block_size, window,
           max(ring, 1), ends, fields, tables)  # fmt: skip
    out: dict[str, Tensor | Mapping[int, Tensor]] = {
        "cu_seqlens_q_incl": ends,
        "valid_token_mask": valid,
        "block_tables": tables,
    }
    by_ratio: dict[str, dict[int, Tensor]] = {
        name: {} for name in ("positions_c", "slot_main", "klen", "ca_offset_len")
    }
    for (name, ratio), (first, wide) in places.items():
        values = fields[first * total : (first + wide) * total]
        values = values if wide == 1 else values.view(total, wide)
        if ratio:
            by_ratio[name][ratio] = values
        else:
            out[name] = values
    return out | by_ratio


OPS = {
    "meta.window_index_prefill": window_index_prefill,
    "meta.window_index_decode": window_index_decode,
    "meta.index_cat": index_cat,
    "meta.logical_to_slot": logical_to_slot,
    "meta.decode_metadata": decode_metadata,
}
DELEGATED = {
    "meta.compressed_index": "layers without an indexer would call it, and the model has none",
    "meta.block_tables": "rows get their tables from meta.decode_metadata, in its launch",
    "meta.gather_rows": "no step calls it",
}
"""What the op of ``cpu`` does on this device, and why that is enough."""
