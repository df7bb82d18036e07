"""Indexer: scores of compressed keys and the selection among them (``spec/kernels.md`` 2.4).

Kernels serve FP4 keys and the selection; other key formats, fp32 queries and sizes that no kernel is made for take the
op of ``cpu``. What follows the visible entries of a row of scores is undefined here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_cuda.fits import int32
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tl.indexer import scores as score_kernels
from deepinfer_cuda.tl.indexer import topk as topk_kernels
from deepinfer_cuda.tl.indexer.block_max import block_maxima
from deepinfer_cuda.tl.indexer.queries import padded
from deepinfer_cuda.unproven import serves

MAX_K = 4096
LONGEST = 1 << 15
"""Columns that one block of threads selects from."""
FILLING_BLOCKS = 528
"""Blocks of threads that keep a device busy: four for each of 132 multiprocessors."""
ROW_CHUNKS, SPAN_CHUNKS = (1024, 512, 256, 128), (4096, 1024)
WIDTHS = (32, 64, 128)
"""Values of a key: a thread has a quarter of them under one scale, in whole words."""
MOST_IN_BLOCK = 64
"""Scores of a block that a thread holds."""
MOST_ROWS = 65535
"""Rows of one launch: the second dimension of a grid."""


def logits(
    q: Any,
    weights: Tensor,
    keys: Any,
    *,
    span: tuple[Tensor, Tensor] | None = None,
    context_lens: Tensor | None = None,
    block_table: Tensor | None = None,
    max_k: int | None = None,
    candidates: Tensor | None = None,
    block: int = 8,
    out: Tensor | None = None,
) -> Tensor:
    """``sum_h relu(q_h . key) * weights_h`` in fp32, ``[T, max_k]``; column c is the c-th visible key.

    :param max_k: columns, at least the longest row; None means the longest row: the op waits for the device.
    :param candidates: int32 ``[T, nb]`` of ``block``-sized blocks, -1 none: other visible columns become -inf.
    :raises ShapeContractError: as the op of ``cpu``.
    """
    query = _query(q)
    bounds = _bounds(keys, span, context_lens, block_table, query)
    table = candidates if candidates is not None else block_table
    known = query is not None and bounds is not None and _takes(*query[:2], weights, candidates, block)
    if not serves("index.logits") or not known or query is None or bounds is None:
        return plain_op("index.logits")(  # type: ignore[no-any-return]
            q, weights, keys, span=span, context_lens=context_lens, block_table=block_table, max_k=max_k,
            candidates=candidates, block=block, out=out,
        )  # fmt: skip
    codes, scales, form = query
    words, bytes_, stride, page, table, first, last = bounds
    total, heads, width = codes.shape[0], codes.shape[1], scales.shape[2] * 32
    if max_k is None:
        lengths = last if page else last - first
        max_k = max(0, int(lengths.max())) if total else 0
    fits = out is not None and out.is_contiguous() and out.dtype == torch.float32 and out.shape == (total, max_k)
    made = out if fits and out is not None else codes.new_empty((total, max_k), dtype=torch.float32)
    kind = str(weights.dtype).removeprefix("torch.")
    if total and max_k and (page or words.numel()):
        if page or candidates is not None:
            chunk = next((c for c in ROW_CHUNKS if total * -(-max_k // c) >= FILLING_BLOCKS), ROW_CHUNKS[-1])
            score_kernels.row_scores(
                heads=heads, width=width, page=page, block=0 if candidates is None else block, query=form, weight=kind,
                chunk=chunk,
            )(codes, scales, weights, words, bytes_, stride, table, first, last,
              table if candidates is None else candidates, made)  # fmt: skip
        else:
            rows = 8 if padded(heads) <= 32 else 4
            groups = -(-total // rows)
            chunk = next((c for c in SPAN_CHUNKS if groups * -(-max_k // c) >= FILLING_BLOCKS), SPAN_CHUNKS[-1])
            score_kernels.span_scores(heads=heads, width=width, rows=rows, query=form, weight=kind, chunk=chunk)(
                codes, scales, weights, words.view(-1, width // 8), bytes_.view(-1, width // 32), first, last, made
            )
    return made if out is None or fits else out.copy_(made)


def _query(q: Any) -> tuple[Tensor, Tensor, str] | None:
    """Codes as the kernels see them, scales, and the form; None: no kernel takes it."""
    if isinstance(q, Tensor):
        if q.dtype != torch.bfloat16 or q.dim() != 3 or not q.is_contiguous() or q.shape[2] % 32 or not q.is_cuda:
            return None
        unused = q.view(torch.uint8).view(-1)[: q.numel() // 32].view(*q.shape[:2], q.shape[2] // 32)
        return q.view(torch.int16), unused, "bf16"
    if (q.fmt, q.group, q.sf_kind) != ("e2m1", 32, "ue8m0") or q.sf.dim() != 3 or not q.sf.is_cuda:
        return None
    data = q.data
    if not (data.is_contiguous() and q.sf.is_contiguous()) or data.data_ptr() % 4:
        return None
    return data.view(torch.int32), q.sf.view(torch.uint8), "e2m1"


def _bounds(
    keys: Any, span: tuple[Tensor, Tensor] | None, lens: Tensor | None, table: Tensor | None, query: Any
) -> tuple[Tensor, Tensor, int, int, Tensor, Tensor, Tensor] | None:
    """Words, bytes, stride, page, block table, first and last key of the rows; None: no kernel takes them."""
    if query is None or isinstance(keys, Tensor):
        return None
    total, width = query[0].shape[0], query[1].shape[2] * 32
    if hasattr(keys, "block_stride"):
        if lens is None or table is None or keys.format != "index_fp4" or keys.width != width or keys.page < 1:
            return None
        tensor = keys.tensor
        at, units = tensor.storage_offset(), tensor.shape[0]
        if keys.block_stride % 16 or at % 16 or tensor.stride(0) != keys.block_stride or not units:
            return None
        if not int32(lens, (total,)) or table.dim() != 2 or not int32(table, (total, table.shape[1])):
            return None
        if not table.shape[1]:  # nothing is stored: every column is -inf
            return None
        used = (units - 1) * keys.block_stride + -(-tensor.shape[1] // 4) * 4
        flat = tensor.as_strided((used,), (1,), at)
        return flat.view(torch.int32), flat, keys.block_stride // 16, keys.page, table, lens, lens
    if span is None or (keys.fmt, keys.group, keys.sf_kind) != ("e2m1", 32, "ue8m0") or keys.shape[-1] != width:
        return None
    data, sf = keys.data, keys.sf.view(torch.uint8)
    if not (data.is_contiguous() and sf.is_contiguous()) or data.data_ptr() % 16:
        return None
    if not all(int32(bound, (total,)) for bound in span):
        return None
    return data.view(torch.int32).view(-1), sf.view(-1), 0, 0, span[1].view(-1, 1), *span


def _takes(codes: Tensor, scales: Tensor, weights: Tensor, candidates: Tensor | None, block: int) -> bool:
    """Whether heads, widths, weights and candidates are as the kernels take them."""
    if not 0 < codes.shape[1] <= 64 or weights.shape != codes.shape[:2] or not weights.is_contiguous():
        return False
    if codes.shape[0] > MOST_ROWS or scales.shape[2] * 32 not in WIDTHS:
        return False
    if weights.dtype not in (torch.float32, torch.bfloat16):
        return False
    if candidates is None:
        return True
    shaped = candidates.dim() == 2 and candidates.shape[0] == codes.shape[0] and candidates.shape[1] > 0
    return shaped and int32(candidates, tuple(candidates.shape)) and block in (4, 8, 16, 32, 64)


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
