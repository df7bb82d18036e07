"""Indexer: scores of compressed keys and the selection among them (``spec/kernels.md`` 2.4).

The libraries' kernels take FP4 keys of 128 values, and rows of bf16 scores, which is what they give. Other sizes, key
formats and candidate lists take the plain op, whose scores are fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from deepinfer_ascend import vendor
from deepinfer_ascend.chip import CUBE_CORES
from deepinfer_ascend.plain import plain_op
from deepinfer_ascend.tensors import QuantTensor

HEADS, WIDTH, PAGES = (32, 64), 128, (32, 64, 128)
MAX_K, ROW_BYTES = 4096, 1024
_NONE = 2**31 - 1


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
    """``sum_h relu(q_h . key) * weights_h``, ``[T, max_k]``; column c is the c-th visible key.

    bf16 where a kernel of the library computes it, else fp32. What follows the visible entries is undefined.

    :param weights: ``[T, heads]``, bf16 or fp32; a kernel takes fp32, which holds every bf16 value.
    :param max_k: columns, at least the longest row; None means the longest row: the op waits for the device.
    :raises ShapeContractError: as the plain op.
    """
    if candidates is None and _takes_query(q, weights) and out is None:
        paged = hasattr(keys, "block_stride")
        lens = context_lens if paged else None if span is None else span[1] - span[0]
        if lens is not None and (_takes_cache(keys, block_table, lens, q) if paged else _takes_span(keys, span, q)):
            width = max(0, int(lens.max())) if max_k is None else max_k
            pair, weights = (q.data, q.words), weights.float().contiguous()
            if paged:
                plan = vendor.symbol("deep_gemm.get_paged_mqa_logits_metadata", weights)(lens, keys.page, CUBE_CORES)
                score = vendor.symbol("deep_gemm.fp8_fp4_paged_mqa_logits", weights)
                return score(pair, _cache_of(keys), weights, lens, block_table, plan, width)
            score = vendor.symbol("deep_gemm.fp8_fp4_mqa_logits", weights)
            ks, ke = span or (lens, lens)
            return score(pair, (keys.data, keys.words), weights, ks, ke, width)
    return plain_op("index.logits")(
        q, weights, keys, span=span, context_lens=context_lens, block_table=block_table, max_k=max_k,
        candidates=candidates, block=block, out=out,
    )  # fmt: skip


def _takes_query(q: Any, weights: Tensor) -> bool:
    return (
        isinstance(q, QuantTensor)
        and q.fmt == "e2m1"
        and q.words is not None
        and len(q.shape) == 3
        and q.shape[0] > 0
        and q.shape[1] in HEADS
        and q.shape[2] == WIDTH
        and weights.dtype in (torch.bfloat16, torch.float32)
        and weights.shape == q.shape[:2]
    )


def _takes_span(keys: Any, span: tuple[Tensor, Tensor] | None, q: QuantTensor) -> bool:
    if not isinstance(keys, QuantTensor) or keys.fmt != "e2m1" or keys.words is None or span is None:
        return False
    return keys.shape[-1] == WIDTH and all(_is_row(bound, q) for bound in span)


def _takes_cache(keys: Any, block_table: Tensor | None, lens: Tensor, q: QuantTensor) -> bool:
    fits = keys.format == "index_fp4" and keys.width == WIDTH and keys.page in PAGES and block_table is not None
    if not fits or block_table is None or not _is_row(lens, q):
        return False
    return block_table.dtype is torch.int32 and block_table.dim() == 2 and len(block_table) == len(q.data)


def _is_row(x: Tensor, q: QuantTensor) -> bool:
    return x.dtype is torch.int32 and x.shape == q.shape[:1]


def _cache_of(view: Any) -> Any:
    """The pages as the library takes them, uint8 ``[blocks, page, 1, 68]``; its equivalent takes the view."""
    if view.tensor.device.type == "cpu":
        return view
    return view.tensor.unflatten(1, (view.page, 1, -1))


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
    :raises ShapeContractError: as the plain op, which serves fp32 scores and whoever wants values.
    """
    if not _takes_scores(scores, k, end, want_values) or not (out is None or out.shape == (scores.shape[0], k)):
        return plain_op("index.topk")(scores, k, end=end, offset=offset, want_values=want_values, out=out)
    per_row = ROW_BYTES // scores.element_size()
    if scores.stride(0) % per_row:
        scores = pad(scores, (0, -scores.shape[1] % per_row), value=float("-inf"))
    select = vendor.symbol("deep_select.topk", scores)
    _, found = select(
        scores, k, sorted=False, end=end, indices_type=torch.int32, sorted_index=True, idx_oob_fill_value=_NONE,
        return_value=False, abort_when_nan_found=False,
    )  # fmt: skip
    moved = found if offset is None else found + offset.unsqueeze(1)
    chosen = torch.where(found == _NONE, -1, moved)
    return chosen if out is None else out.copy_(chosen)


def _takes_scores(scores: Tensor, k: int, end: Tensor, want_values: bool) -> bool:
    return (
        scores.dtype == torch.bfloat16
        and scores.dim() == 2
        and scores.shape[0] > 0
        and scores.stride(1) == 1
        and not want_values
        and 1 <= k <= min(MAX_K, scores.shape[1])
        and end.dtype == torch.int32
        and end.shape == scores.shape[:1]
    )


OPS = {"index.logits": logits, "index.topk": topk}
