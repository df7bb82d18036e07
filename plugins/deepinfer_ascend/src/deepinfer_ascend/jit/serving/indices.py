"""Index rows, slots through block tables, and rows by number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.jit.serving.parts import Served, is_int32, is_rows, run

THREADS = 128
"""Rows of a core at a time, where a thread takes one."""
NO_CONTEXT = 2**31 - 1


def empty(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.int32)


def window_index_prefill(served: Served, pivots: Tensor, width: int) -> Tensor:
    """``meta.window_index_prefill``."""
    if not is_int32(pivots, dim=2) or pivots.shape[1] != 4 or width < 1:
        return served.op(pivots, width)  # type: ignore[no-any-return]
    out = empty(len(pivots), width)
    run("window_rows", len(out), {}, pivots=pivots.contiguous(), out=out, rows=len(out), width=width)
    return out


def window_index_decode(served: Served, offset_len: Tensor, ring: int, width: int) -> Tensor:
    """``meta.window_index_decode``."""
    if not _is_pairs(offset_len) or width % 8 or not width:
        return served.op(offset_len, ring, width)  # type: ignore[no-any-return]
    out, pairs = empty(len(offset_len), width), offset_len.contiguous()
    run("ring_indices", len(out), {"width": width}, start_length=pairs, out=out, ring=ring, rows=len(out))
    return out


def compressed_index(
    served: Served, offset_len: Tensor, width: int, *, base: int = 0, block_table: Any = None, per_block: int = 0
) -> Tensor:
    """``meta.compressed_index``."""
    known = block_table is None or (is_int32(block_table, dim=2) and block_table.numel() and per_block > 0)
    if not _is_pairs(offset_len) or not known or width < 1 or not isinstance(base, int):
        return served.op(  # type: ignore[no-any-return]
            offset_len, width, base=base, block_table=block_table, per_block=per_block
        )
    out, given = empty(len(offset_len), width), {"start_length": offset_len.contiguous(), "base": base}
    if block_table is not None:
        table = {"table": block_table.reshape(-1).contiguous(), "per_block": per_block, "size": block_table.numel()}
        run("table_rows", len(out), {}, out=out, rows=len(out), width=width, **given, **table)
    elif width % 8:
        return served.op(offset_len, width, base=base)  # type: ignore[no-any-return]
    else:
        run("run_indices", len(out), {"width": width}, out=out, rows=len(out), **given)
    return out


def _is_pairs(x: Tensor) -> bool:
    return is_int32(x, dim=2) and x.shape[1] == 2


def index_cat(served: Served, window: Tensor, compressed: Tensor, offset: int) -> Tensor:
    """``meta.index_cat``."""
    if not is_int32(window, compressed, dim=2) or len(window) != len(compressed) or not isinstance(offset, int):
        return served.op(window, compressed, offset)  # type: ignore[no-any-return]
    left, right = window.shape[1], compressed.shape[1]
    if not left or not right:
        return served.op(window, compressed, offset)  # type: ignore[no-any-return]
    out, given = (
        empty(len(window), left + right),
        {"window": window.contiguous(), "compressed": compressed.contiguous()},
    )
    run("joined_rows", len(out), {}, out=out, offset=offset, rows=len(out), left=left, right=right, **given)
    return out


def logical_to_slot(
    served: Served, entries: Tensor, block_table: Tensor, per_block: int, *, context: Tensor | None = None
) -> Tensor:
    """``meta.logical_to_slot``."""
    fits = is_int32(entries, block_table, dim=2) and len(entries) == len(block_table) and block_table.numel() > 0
    if not fits or not entries.numel() or not (context is None or (is_int32(context) and len(context) == len(entries))):
        return served.op(entries, block_table, per_block, context=context)  # type: ignore[no-any-return]
    out, (rows, width) = empty(*entries.shape), entries.shape
    ends = torch.full((rows,), NO_CONTEXT, dtype=torch.int32) if context is None else context.contiguous()
    given = {"entries": entries.contiguous(), "table": block_table.contiguous(), "context": ends}
    run(
        "slot_rows",
        rows,
        {},
        out=out,
        per_block=per_block,
        rows=rows,
        width=width,
        blocks=block_table.shape[1],
        **given,
    )
    return out


def gather_rows(served: Served, x: Tensor, idx: Tensor) -> Tensor:
    """``meta.gather_rows`` of bf16 rows, and of rows of words of 4 bytes."""
    if x.dim() != 2 or not is_int32(idx) or not x.numel():
        return served.op(x, idx)  # type: ignore[no-any-return]
    out, width = torch.empty(len(idx), x.shape[1], dtype=x.dtype), x.shape[1]
    if is_rows(x):
        given = {"x": x.contiguous(), "idx": idx.contiguous(), "out": out}
        run("gather_rows", len(idx), {"width": width}, rows=len(idx), count=len(x), **given)
    elif x.dtype in (torch.int32, torch.float32):
        given = {"x": x.contiguous().view(torch.int32), "idx": idx.contiguous(), "out": out.view(torch.int32)}
        run("picked_rows", len(idx), {}, rows=len(idx), count=len(x), width=width, **given)
    else:
        return served.op(x, idx)  # type: ignore[no-any-return]
    return out


def block_tables(served: Served, tables: Tensor, query_indices: Tensor) -> Tensor:
    """``meta.block_tables``."""
    return gather_rows(served, tables, query_indices)


def decode_metadata(
    served: Served,
    seqlens_q: Tensor,
    seqlens_k: Tensor,
    block_tables: Tensor,
    state_slot: Tensor,
    swa_slot: Tensor,
    *,
    block_size: int,
    window: int,
    ring: int,
    ratios_sparse: Any = (),
    ratios_dense: Any = (),
    valid: Tensor | None = None,
) -> Any:
    """``meta.decode_metadata``."""
    fields = (seqlens_q, seqlens_k, state_slot, swa_slot)
    n = len(seqlens_q)
    fits = is_int32(*fields) and all(len(x) == n for x in fields) and n > 0 and is_int32(block_tables, dim=2)
    rows = int(seqlens_q.sum()) if valid is None else len(valid)
    if not fits or len(block_tables) != n or not block_tables.numel() or not rows:
        return served.op(
            seqlens_q, seqlens_k, block_tables, state_slot, swa_slot, block_size=block_size, window=window, ring=ring,
            ratios_sparse=ratios_sparse, ratios_dense=ratios_dense, valid=valid,
        )  # fmt: skip
    mask, blocks = torch.ones(rows, dtype=torch.bool) if valid is None else valid, block_tables.shape[1]
    flags = mask.to(torch.uint8)
    made = {name: empty(rows) for name in ("positions", "queries", "context", "states", "windows", "slots")}
    made |= {"ends": empty(n), "spans": empty(rows, 2), "row_tables": empty(rows, blocks)}
    run(
        "request_rows", rows, {}, seqlens_q=seqlens_q.contiguous(), seqlens_k=seqlens_k.contiguous(),
        state_slot=state_slot.contiguous(), swa_slot=swa_slot.contiguous(), tables=block_tables.contiguous(),
        valid=flags, window=window, ring=ring, n=n, rows=rows, blocks=blocks, **made,
    )  # fmt: skip
    out: dict[str, Any] = {
        "cu_seqlens_q_incl": made["ends"], "positions": made["positions"], "valid_token_mask": mask,
        "query_indices": made["queries"], "context_lens": made["context"], "block_tables": made["row_tables"],
        "state_slot_idx": made["states"], "swa_slot_idx": made["windows"],
    }  # fmt: skip
    if window:
        out |= {"swa_offset_len": made["spans"], "slot_swa": made["slots"]}
    out |= {"positions_c": {}, "slot_main": {}, "klen": {}, "ca_offset_len": {}}
    for ratio in sorted({*ratios_sparse, *ratios_dense}):
        found = {name: empty(rows) for name in ("done", "slots", "seen")} | {"runs": empty(rows, 2)}
        given = {"positions": made["positions"], "valid": flags, "row_tables": made["row_tables"]}
        counts = {"per_block": block_size // ratio, "rows": rows, "blocks": blocks}
        run("ratio_rows", -(-rows // THREADS), {"ratio": ratio}, **given, **counts, **found)
        out["positions_c"][ratio], out["slot_main"][ratio] = found["done"], found["slots"]
        if ratio in ratios_sparse:
            out["klen"][ratio] = found["seen"]
        if ratio in ratios_dense:
            out["ca_offset_len"][ratio] = found["runs"]
    return out


SERVED = {
    "meta.window_index_prefill": window_index_prefill,
    "meta.window_index_decode": window_index_decode,
    "meta.compressed_index": compressed_index,
    "meta.index_cat": index_cat,
    "meta.logical_to_slot": logical_to_slot,
    "meta.gather_rows": gather_rows,
    "meta.block_tables": block_tables,
    "meta.decode_metadata": decode_metadata,
}
