"""Scores of compressed keys: which kernel computes them, and how rows and keys are cut into blocks of threads.

FP4 keys have kernels: those of whole pages, those of some blocks of a row, those of a prefill. Other key formats, fp32
queries and sizes that no kernel is made for take the op of ``cpu``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from deepinfer_cuda.fits import int32
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tl.indexer import paged, scores, spans
from deepinfer_cuda.tl.indexer.queries import padded
from deepinfer_cuda.tl.indexer.tensor_core import KEYS
from deepinfer_cuda.unproven import serves

FILLING_BLOCKS = 528
"""Blocks of threads that keep a device busy: four for each of 132 multiprocessors."""
ROW_CHUNKS, SPAN_CHUNKS = (1024, 512, 256, 128), (4096, 1024)
PLACES, PROLOGUE = 660, 3
"""Blocks of whole pages that run at once, five a multiprocessor, and tiles that take as long as a block's beginning."""
WIDTHS = (32, 64, 128)
"""Values of a key: a thread has a quarter of them under one scale, in whole words."""
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
        if page and page % KEYS == 0 and candidates is None:
            launch = paged.paged_scores(heads=heads, width=width, page=page, query=form, weight=kind)
            each = tiles_of_block(total, -(-max_k // KEYS))
            launch(codes, scales, weights, bytes_, stride, table, last, each, made)
        elif page or candidates is not None:
            chunk = next((c for c in ROW_CHUNKS if total * -(-max_k // c) >= FILLING_BLOCKS), ROW_CHUNKS[-1])
            scores.row_scores(
                heads=heads, width=width, page=page, block=0 if candidates is None else block, query=form, weight=kind,
                chunk=chunk,
            )(codes, scales, weights, words, bytes_, stride, table, first, last,
              table if candidates is None else candidates, made)  # fmt: skip
        else:
            rows = 8 if padded(heads) <= 32 else 4
            groups = -(-total // rows)
            chunk = next((c for c in SPAN_CHUNKS if groups * -(-max_k // c) >= FILLING_BLOCKS), SPAN_CHUNKS[-1])
            spans.span_scores(heads=heads, width=width, rows=rows, query=form, weight=kind, chunk=chunk)(
                codes, scales, weights, words.view(-1, width // 8), bytes_.view(-1, width // 32), first, last, made
            )
    return made if out is None or fits else out.copy_(made)


@lru_cache(maxsize=1024)
def tiles_of_block(rows: int, tiles: int) -> int:
    """Tiles of keys that a block of threads scores, of ``rows`` rows of ``tiles``: whole waves of blocks run."""

    def each(waves: int) -> int:
        return -(-tiles // min(tiles, max(1, waves * PLACES // rows)))

    def time(n: int) -> int:
        return -(-rows * -(-tiles // n) // PLACES) * (n + PROLOGUE)

    return min((each(waves) for waves in (1, 2, 3)), key=time)


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
