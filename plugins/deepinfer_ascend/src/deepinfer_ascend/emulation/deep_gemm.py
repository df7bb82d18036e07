"""DeepGEMM: products with the weight's inputs innermost ("nt"), and scores of index keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.contracts import check, misfit
from deepinfer_ascend.emulation import operands
from deepinfer_ascend.emulation.torch_npu import npu_format_cast
from deepinfer_ascend.fractal import ND, Fractals
from deepinfer_ascend.plain import plain_op
from deepinfer_ascend.scale_words import check_words, unpack
from deepinfer_ascend.tensors import PlainWeight, QuantTensor

RECIPE = (1, 1, 32)
SEGMENT = 128
"""Rows that an expert's segment is a multiple of."""
INDEX_HEADS, INDEX_WIDTH = (32, 64), 128
FLOATS = (torch.bfloat16, torch.float32)


def bf16_gemm_nt(a: Tensor, b: Any, d: Tensor, c: Tensor | None = None) -> None:
    """``d = a @ b.T``, or that added to fp32 ``c``, which is ``d`` itself."""
    call = "bf16_gemm_nt"
    check(call, "a", a, torch.bfloat16, None, None)
    if not isinstance(b, Fractals) or b.dtype != torch.bfloat16 or len(b.shape) != 2:
        raise misfit(call, "b", "a bf16 matrix in NZ", type(b).__name__)
    if b.shape[1] != a.shape[1]:
        raise misfit(call, "b", f"[N, {a.shape[1]}]", list(b.shape))
    operands.result(call, d, a.shape[0], b.shape[0], *FLOATS)
    matrix = npu_format_cast(b, ND).float().t().contiguous()
    _into(call, a, PlainWeight(call, matrix), d, c)


def fp8_fp4_gemm_nt(a: Any, b: Any, d: Tensor, c: Tensor | None = None, recipe: Any = None) -> None:
    """``d = a @ b.T`` of FP8 activations and an FP8 or FP4 weight, a scale for 32 inputs of each."""
    call = "fp8_fp4_gemm_nt"
    if recipe != RECIPE:
        raise misfit(call, "recipe", RECIPE, recipe)
    x, w = operands.activation(call, a), operands.weight(call, b)
    operands.result(call, d, x.shape[0], w.shape[1], *FLOATS)
    _into(call, x, w, d, c)


def _into(call: str, x: Any, w: PlainWeight, d: Tensor, c: Tensor | None) -> None:
    if x.shape[1] != w.shape[0]:
        raise misfit(call, "a, b", "of the same inputs", (list(x.shape), w.shape))
    if c is not None and (c.data_ptr() != d.data_ptr() or d.dtype != torch.float32):
        raise misfit(call, "c", "fp32, and d itself", (c.dtype, d.dtype))
    acc = None if c is None else c.clone()
    plain_op("gemm.dense")(x, w, out_dtype=d.dtype, acc=acc, out=d)


def m_grouped_fp8_fp4_gemm_nt_contiguous(
    a: Any, b: Any, d: Tensor, grouped_layout: Tensor, recipe: Any = None, use_psum_layout: bool = False
) -> None:
    """Each segment of rows times the matrix of its group. ``grouped_layout`` int32 ``[E]``: ends of the rows that
    count; a segment begins at the next multiple of 128 behind the one before. Rows in between are undefined."""
    call = "m_grouped_fp8_fp4_gemm_nt_contiguous"
    if recipe != RECIPE or not use_psum_layout:
        raise misfit(call, "recipe, use_psum_layout", (RECIPE, True), (recipe, use_psum_layout))
    x, w = operands.activation(call, a), operands.weight(call, b, stacked=True)
    check(call, "grouped_layout", grouped_layout, torch.int32, w.shape[0])
    operands.result(call, d, x.shape[0], w.shape[2], torch.bfloat16)
    if x.shape[0] % SEGMENT:
        raise misfit(call, "a", f"a multiple of {SEGMENT} rows", x.shape[0])
    ends = grouped_layout.tolist()
    begins = [0, *(-(-end // SEGMENT) * SEGMENT for end in ends)]
    if any(not begin <= end <= x.shape[0] for begin, end in zip(begins, ends, strict=False)):
        raise misfit(call, "grouped_layout", f"ends of segments that begin at multiples of {SEGMENT}", ends)
    d.fill_(float("nan"))  # what is undefined must not be read
    for group, (begin, end) in enumerate(zip(begins, ends, strict=False)):
        if end > begin:
            rows = operands.Values(x.values[begin:end])
            plain_op("gemm.dense")(rows, PlainWeight(call, w.matrix[group]), out=d[begin:end])


def fp8_einsum(expression: str, a: Any, b: Any, d: Tensor, recipe: Any = None) -> None:
    """``z[b, h] = x[b, h] @ w[h].T``; ``a`` FP8 ``[T, G, K]`` with the words of its ``T * G`` rows."""
    call = "fp8_einsum"
    if expression != "bhr,hdr->bhd" or recipe != RECIPE:
        raise misfit(call, "expression, recipe", ("bhr,hdr->bhd", RECIPE), (expression, recipe))
    data, words = a
    if not isinstance(data, Tensor) or data.dim() != 3:
        raise misfit(call, "a", "FP8 [T, G, K]", type(data).__name__)
    x = operands.activation(call, (data.view(-1, data.shape[2]), words))
    w = operands.weight(call, b, stacked=True)
    if not isinstance(d, Tensor) or d.dtype != torch.bfloat16 or d.shape != (*data.shape[:2], w.shape[2]):
        raise misfit(call, "d", f"bf16 [{data.shape[0]}, {data.shape[1]}, {w.shape[2]}]", type(d).__name__)
    values = operands.Values(x.values.view(data.shape))
    d.copy_(plain_op("gemm.einsum_heads")(values, w))


def fp8_fp4_mqa_logits(q: Any, kv: Any, weights: Tensor, ks: Tensor, ke: Tensor, max_seqlen_k: int) -> Tensor:
    """bf16 ``[T, max_seqlen_k]``; column 0 is the key ``ks`` of a row. ``q`` FP4 ``[T, h, 64 bytes]`` and the words of
    its ``T * h`` rows, ``kv`` FP4 ``[S, 64 bytes]`` and words."""
    call = "fp8_fp4_mqa_logits"
    query = _query(call, q, weights)
    data, words = kv
    check(call, "kv", data, torch.uint8, None, INDEX_WIDTH // 2)
    check_words(call, "kv scales", words, data.shape[0], INDEX_WIDTH)
    keys = QuantTensor.of_codes(data, unpack(words), fmt="e2m1", group=32, sf_kind="ue8m0")
    for name, bound in (("ks", ks), ("ke", ke)):
        check(call, name, bound, torch.int32, query.data.shape[0])
    scores: Tensor = plain_op("index.logits")(query, weights, keys, span=(ks, ke), max_k=max_seqlen_k)
    return scores.bfloat16()


def get_paged_mqa_logits_metadata(context_lens: Tensor, block_kv: int, num_cores: int) -> tuple[int, int]:
    """How the work is shared out: opaque to the caller, and nothing here."""
    check("get_paged_mqa_logits_metadata", "context_lens", context_lens, torch.int32, None)
    return block_kv, num_cores


def fp8_fp4_paged_mqa_logits(
    q: Any,
    kv_cache: Any,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    metadata: Any,
    max_context_len: int,
) -> Tensor:
    """As :func:`fp8_fp4_mqa_logits`, with keys in pages: a CacheView of format ``index_fp4``."""
    call = "fp8_fp4_paged_mqa_logits"
    query = _query(call, q, weights)
    rows = query.data.shape[0]
    if kv_cache.format != "index_fp4" or kv_cache.width != INDEX_WIDTH or kv_cache.page not in (32, 64, 128):
        got = (kv_cache.format, kv_cache.width, kv_cache.page)
        raise misfit(call, "kv_cache", "index_fp4 of 128 values in pages of 32, 64 or 128", got)
    check(call, "context_lens", context_lens, torch.int32, rows)
    check(call, "block_table", block_table, torch.int32, rows, None)
    if metadata is None or metadata[0] != kv_cache.page:
        raise misfit(call, "metadata", f"of pages of {kv_cache.page}", metadata)
    scores: Tensor = plain_op("index.logits")(
        query, weights, kv_cache, context_lens=context_lens, block_table=block_table, max_k=max_context_len
    )
    return scores.bfloat16()


def _query(call: str, q: Any, weights: Tensor) -> QuantTensor:
    data, words = q
    check(call, "q", data, torch.uint8, None, None, INDEX_WIDTH // 2)
    rows, heads, _ = data.shape
    if heads not in INDEX_HEADS:
        raise misfit(call, "q", f"of {' or '.join(map(str, INDEX_HEADS))} heads", heads)
    check_words(call, "q scales", words, rows * heads, INDEX_WIDTH)
    check(call, "weights", weights, torch.float32, rows, heads)
    sf = unpack(words).view(rows, heads, -1)
    return QuantTensor.of_codes(data, sf, fmt="e2m1", group=32, sf_kind="ue8m0")
