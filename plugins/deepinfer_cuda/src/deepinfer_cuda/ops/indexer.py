"""Indexer: scores of compressed keys and the selection among them (``spec/kernels.md`` 2.4).

Sizes that no kernel is made for take the op of ``cpu``. What follows the visible entries of a row of scores is
undefined here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_cuda.fits import int32
from deepinfer_cuda.index_scores import MOST_ROWS, logits
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tl.indexer import topk as topk_kernels
from deepinfer_cuda.tl.indexer.block_max import block_maxima
from deepinfer_cuda.unproven import serves

MAX_K = 4096
LONGEST = 1 << 15
"""Columns that one block of threads selects from."""
MOST_IN_BLOCK = 64
"""Scores of a block that a thread holds."""


def topk(
    scores: Tensor,
    k: int,
    *,
    end: Tensor,
    offset: Tensor | None = None,
    want_values: bool = False,
    out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The best ``min(k, end)`` columns of each row by (score descending, position ascending), in ascending order.

    :param scores: bf16 or fp32 ``[T, n]``; a column at or past ``end`` int32 ``[T]``, of -inf or NaN is never chosen.
    :param offset: int32 ``[T]`` added to the chosen positions.
    :returns: int32 ``[T, k]``, -1 padded at the end; with ``want_values`` also their scores (-inf in the padding).
    :raises ShapeContractError: as the op of ``cpu``.
    """
    if not serves("index.topk") or not _takes_selection(scores, k, end, offset, out):
        return plain_op("index.topk")(scores, k, end=end, offset=offset, want_values=want_values, out=out)  # type: ignore[no-any-return]
    rows, n = scores.shape
    chosen = out if out is not None else scores.new_empty((rows, k), dtype=torch.int32)
    values = scores.new_empty((rows, k), dtype=torch.float32) if want_values else None
    flat = scores.as_strided(((rows - 1) * scores.stride(0) + n,), (1,), scores.storage_offset())
    segments = -(-n // LONGEST)
    if segments == 1:
        _select(flat, scores.stride(0), n, 1, end, offset, None, chosen.view(rows, 1, k), values)
    else:  # the best of each segment, then the best of these, which lie in the order of their positions
        best = scores.new_empty((rows, segments, k), dtype=torch.int32)
        theirs = scores.new_empty((rows, segments, k), dtype=torch.float32)
        _select(flat, scores.stride(0), n, segments, end, None, None, best, theirs)
        wide = segments * k
        _select(theirs.view(-1), wide, wide, 1, end, offset, best.view(rows, wide), chosen.view(rows, 1, k), values)
    return chosen if values is None else (chosen, values)


def _takes_selection(scores: Tensor, k: int, end: Tensor, offset: Tensor | None, out: Tensor | None) -> bool:
    if scores.dim() != 2 or scores.dtype not in (torch.float32, torch.bfloat16) or not scores.is_cuda:
        return False
    rows, n = scores.shape
    if not 0 < rows <= MOST_ROWS or not n or not 1 <= k <= MAX_K or (n > 1 and scores.stride(1) != 1):
        return False
    if n > LONGEST and -(-n // LONGEST) * k > LONGEST:
        return False
    if not int32(end, (rows,)) or (offset is not None and not int32(offset, (rows,))):
        return False
    return out is None or int32(out, (rows, k))


def _select(
    flat: Tensor,
    stride: int,
    n: int,
    segments: int,
    end: Tensor,
    offset: Tensor | None,
    positions: Tensor | None,
    chosen: Tensor,
    values: Tensor | None,
) -> None:
    """One launch of the kernel; ``chosen`` int32 ``[T, segments, k]``."""
    rows, _, k = chosen.shape
    threads, per_thread = topk_kernels.shapes(min(n, LONGEST))
    vector = stride % 4 == 0 and flat.data_ptr() % (4 * flat.element_size()) == 0
    topk_kernels.topk_rows(
        dtype=str(flat.dtype).removeprefix("torch."),
        threads=threads,
        per_thread=per_thread,
        groups=topk_kernels.groups_for(k, threads, per_thread),
        vector=vector,
        values=values is not None,
        shifted=offset is not None,
        mapped=positions is not None,
    )(
        flat,
        stride // 4 if vector else stride,
        n,
        segments,
        end,
        end if offset is None else offset,
        chosen.view(rows, -1) if positions is None else positions,
        chosen,
        chosen.view(torch.float32) if values is None else values.view(chosen.shape),
    )


def block_max(scores: Tensor, valid: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Largest visible score of each block ``[T, nb]``; the block of the newest visible entry becomes +inf.

    :param valid: int32 ``[T]``, visible columns of each row.
    :returns: fp32 block scores (-inf: nothing visible) and int32 ``[T]`` counts of blocks that have a visible entry.
    :raises ShapeContractError: as the op of ``cpu``.
    """
    known = scores.dim() == 2 and scores.dtype == torch.float32 and scores.is_cuda and 0 < block <= MOST_IN_BLOCK
    rows, n = scores.shape if known else (0, 0)
    if not 0 < rows <= MOST_ROWS or not n or (n > 1 and scores.stride(1) != 1) or not int32(valid, (rows,)):
        return plain_op("index.block_max")(scores, valid, block)  # type: ignore[no-any-return]
    best = scores.new_empty((rows, -(-n // block)))
    counts = valid.new_empty(rows)
    stride = scores.stride(0)
    flat = scores.as_strided(((rows - 1) * stride + n,), (1,), scores.storage_offset())
    vector = block % 4 == 0 and stride % 4 == 0 and flat.data_ptr() % 16 == 0
    launch = block_maxima(block=block, vector=vector)
    launch(flat, stride // 4 if vector else stride, n, valid, best, counts)
    return best, counts


OPS = {"index.logits": logits, "index.topk": topk, "index.block_max": block_max}
"""Scores of compressed keys, the best of them, and candidate blocks."""
DELEGATED = {
    "index.restore": "no model asks for scores of candidate blocks alone, whose places would have to be restored",
}
"""What the op of ``cpu`` does on this device, and why that is enough."""
