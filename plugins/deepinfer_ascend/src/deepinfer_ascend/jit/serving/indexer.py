"""Selection among scores: what the vendor's selection does not take, the best of blocks, and positions restored."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.jit.serving.indices import empty
from deepinfer_ascend.jit.serving.parts import Served, is_int32, run

NAMES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


def topk(
    served: Served,
    scores: Tensor,
    k: int,
    *,
    end: Tensor,
    offset: Tensor | None = None,
    want_values: bool = False,
    out: Tensor | None = None,
) -> Any:
    """``index.topk`` of fp32 scores, and where values are asked for; bf16 scores alone are the vendor's."""
    rows, columns = scores.shape if scores.dim() == 2 else (0, 0)
    fits = rows and columns and scores.dtype in NAMES and is_int32(end) and len(end) == rows and k >= 1
    fits = fits and (offset is None or (is_int32(offset) and len(offset) == rows))
    fits = fits and (out is None or (out.dtype == torch.int32 and out.shape == (rows, k)))
    if not fits or (scores.dtype == torch.bfloat16 and not want_values):
        return served.op(scores, k, end=end, offset=offset, want_values=want_values, out=out)
    found, values = empty(rows, k), torch.empty(rows, k)
    added = torch.zeros(rows, dtype=torch.int32) if offset is None else offset.contiguous()
    given = {"scores": scores.contiguous(), "end": end.contiguous(), "offset": added, "out": found, "values": values}
    run("topk_rows", rows, {"dtype": NAMES[scores.dtype]}, rows=rows, columns=columns, k=k, **given)
    chosen = found if out is None else out.copy_(found)
    return (chosen, values) if want_values else chosen


def block_max(served: Served, scores: Tensor, valid: Tensor, block: int) -> Any:
    """``index.block_max``."""
    rows, columns = scores.shape if scores.dim() == 2 else (0, 0)
    if not rows or not columns or scores.dtype not in NAMES or not is_int32(valid) or len(valid) != rows or block < 1:
        return served.op(scores, valid, block)
    blocks = -(-columns // block)
    best, counts = torch.empty(rows, blocks), empty(rows)
    given = {"scores": scores.contiguous(), "valid": valid.contiguous(), "best": best, "counts": counts}
    sizes = {"block": block, "dtype": NAMES[scores.dtype]}
    run("block_max_rows", rows, sizes, rows=rows, columns=columns, blocks=blocks, **given)
    return best, counts


def restore(served: Served, compact: Tensor, candidates: Tensor, block: int, *, offset: Tensor | None = None) -> Tensor:
    """``index.restore``, in place."""
    fits = is_int32(compact, candidates, dim=2) and len(compact) == len(candidates) and compact.is_contiguous()
    rows = len(compact)
    fits = fits and bool(compact.numel() and candidates.numel()) and block > 0
    if not fits or not (offset is None or (is_int32(offset) and len(offset) == rows)):
        return served.op(compact, candidates, block, offset=offset)  # type: ignore[no-any-return]
    added = torch.zeros(rows, dtype=torch.int32) if offset is None else offset.contiguous()
    given = {"compact": compact, "candidates": candidates.contiguous(), "offset": added}
    counts = {"rows": rows, "k": compact.shape[1], "count": candidates.shape[1]}
    run("restored_rows", rows, {"block": block}, **given, **counts)
    return compact


SERVED = {"index.topk": topk, "index.block_max": block_max, "index.restore": restore}
