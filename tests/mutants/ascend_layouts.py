"""Faults of layout in backend ``ascend``, under emulation: what reaches a vendor's kernel in a wrong form.

A fault is put where the backend calls a symbol of a library: its arguments are changed on the way. Some the device
would refuse (a dtype, a stride, a format: so does the equivalent), the others it would take, and give other numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from layout_faults import (
    Change,
    a_power_more,
    argument,
    beside,
    by_groups,
    changed,
    column_major,
    data,
    four_a_word,
    fractals_of_eight_rows,
    halves_swapped,
    in_nd,
    nibbles_swapped,
    of_the_next_span,
    of_the_transpose,
    option,
    padded_columns,
    replaced,
    row_major,
    strided_result,
    with_columns_of_zeros,
    words,
)
from mutant import Mutant

DENSE, PLAIN = "deep_gemm.fp8_fp4_gemm_nt", "deep_gemm.bf16_gemm_nt"
HEADS, GROUPED = "deep_gemm.fp8_einsum", "deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous"
SCORES, PAGED = "deep_gemm.fp8_fp4_mqa_logits", "deep_gemm.fp8_fp4_paged_mqa_logits"
CAST, GATE = "tile_kernels.per_token_cast", "tile_kernels.moe_topk_gate_forward"
SELECT, FORMAT = "deep_select.topk", "torch_npu.npu_format_cast"
EXPAND, POST = "tile_kernels.expand_to_mhc_fwd", "tile_kernels.mhc_post_fwd"
COLLAPSE, ENGRAM = "tile_kernels.mhc_pre_apply_mix_fwd", "tile_kernels.engram_gate_fwd"
PREFILL, DECODE = "flash_mla.flash_mla_sparse_fwd", "flash_mla.flash_mla_with_kvcache"
AT = {
    DENSE: ("backend/test_gemm.py", "dense"),
    PLAIN: ("backend/test_gemm.py", "dense"),
    HEADS: ("backend/test_gemm.py", "einsum"),
    GROUPED: ("backend/test_gemm.py", "grouped"),
    SCORES: ("backend/test_indexer.py", "gathered"),
    PAGED: ("backend/test_indexer.py", "paged"),
    SELECT: ("backend/test_indexer.py", "topk"),
    CAST: ("backend/test_quant.py", "cast"),
    GATE: ("backend/test_moe_gate.py", ""),
    FORMAT: ("backend/test_gemm.py", "dense"),
    EXPAND: ("backend/test_mhc.py", "expand"),
    POST: ("backend/test_mhc.py", "post"),
    COLLAPSE: ("backend/test_mhc.py", "head or collapse or pre"),
    ENGRAM: ("backend/test_engram.py", "gate"),
    PREFILL: ("backend/test_attention.py", "prefill"),
    DECODE: ("backend/test_attention.py", "decode"),
}
"""Symbol -> the file of the kit and the tests in it that call the symbol."""


def made(name: str, where: tuple[str, str], apply: Callable[[], AbstractContextManager[object]]) -> Mutant:
    caught_by, test = where
    return Mutant(
        name=f"ascend: {name}", caught_by=caught_by, test=test, apply=apply, subject="ascend", options=("--emulate",)
    )


def faults_of(symbol: str, faults: dict[str, Change]) -> list[Mutant]:
    return [made(f"{symbol}: {name}", AT[symbol], changed(symbol, change)) for name, change in faults.items()]


MUTANTS = [
    *faults_of(
        DENSE,
        {
            "row-major words": argument(0, words(row_major)),
            "int32 words": argument(0, words(four_a_word)),
            "padded columns of words": argument(0, words(padded_columns)),
            "words with the halves swapped": argument(0, words(halves_swapped)),
            "words of the next span": argument(0, words(of_the_next_span)),
            "activations as bytes": argument(0, data(lambda x: x.view(torch.uint8))),
            "activations column-major": argument(0, data(column_major)),
            "a weight in ND": argument(1, data(in_nd)),
            "a weight whose transpose is in NZ": argument(1, data(of_the_transpose)),
            "a weight in fractals of 8 rows": argument(1, data(fractals_of_eight_rows)),
            "FP4 weights with the halves swapped": argument(1, data(nibbles_swapped)),
            "row-major words of the weight": argument(1, words(row_major)),
            "words of the weight with the halves swapped": argument(1, words(halves_swapped)),
            "words of the weight a power more": argument(1, words(a_power_more)),
            "another recipe": option("recipe", lambda _: (1, 128, 128)),
            "a strided result": strided_result,
            "an accumulator beside the result": beside,
        },
    ),
    *faults_of(
        PLAIN,
        {
            "fp32 activations": argument(0, lambda x: x.float()),
            "a weight in ND": argument(1, in_nd),
            "a weight whose transpose is in NZ": argument(1, of_the_transpose),
            "a strided result": strided_result,
            "an accumulator beside the result": beside,
        },
    ),
    *faults_of(
        HEADS,
        {
            "words by groups": argument(1, by_groups),
            "row-major words": argument(1, words(row_major)),
            "a weight in ND": argument(2, data(in_nd)),
            "words of the weight with the halves swapped": argument(2, words(halves_swapped)),
        },
    ),
    *faults_of(
        GROUPED,
        {
            "row-major words": argument(0, words(row_major)),
            "words with the halves swapped": argument(0, words(halves_swapped)),
            "a weight in ND": argument(1, data(in_nd)),
            "words of the next expert": argument(1, words(lambda x: column_major(x.roll(1, 0)))),
            "int64 ends": argument(3, lambda ends: ends.long()),
            "ends as sizes": argument(3, lambda ends: ends.diff(prepend=ends.new_zeros(1))),
            "no psum layout": option("use_psum_layout", lambda _: False),
            "a result of fp32": argument(2, lambda d: d.float()),
        },
    ),
    made("segments of 64 rows", AT[GROUPED], replaced("routing", "SEGMENT", lambda _: 64)),
    made(
        "rows left at their places",
        AT[GROUPED],
        replaced(
            "ops.gemm",
            "aligned_places",
            lambda op: lambda group, sizes: (torch.arange(len(group)), op(group, sizes)[1]),
        ),
    ),
    made(
        "experts' segments of 64 rows",
        ("backend/test_moe.py", "experts_equal"),
        replaced("routing", "SEGMENT", lambda _: 64),
    ),
    *faults_of(
        CAST,
        {
            "fp32 rows": argument(0, lambda x: x.float()),
            "groups of 64": argument(2, lambda _: 64),
            "scales that are not rounded": option("round_sf", lambda _: False),
            "row-major scales": option("use_tma_aligned_col_major_sf", lambda _: False),
            "scales that are not packed": option("use_packed_ue8m0", lambda _: False),
        },
    ),
    made(
        "casts packed with the halves swapped",
        AT[CAST],
        replaced("tensors", "unpack", lambda op: lambda x: op(halves_swapped(x) if x.dim() == 2 else x)),
    ),
    *faults_of(
        GATE,
        {
            "bf16 logits": argument(0, lambda x: x.bfloat16()),
            "no bias": option("bias", lambda _: None),
            "a choice less": argument(1, lambda k: max(1, k - 1)),
            "an inverted mask": option("mask", lambda m: None if m is None else ~m),
        },
    ),
    *faults_of(
        SCORES,
        {
            "row-major words of the query": argument(0, words(row_major)),
            "words of the keys with the halves swapped": argument(1, words(halves_swapped)),
            "bf16 weights": argument(2, lambda x: x.bfloat16()),
            "int64 spans": argument(3, lambda x: x.long()),
        },
    ),
    *faults_of(
        PAGED,
        {
            "row-major words of the query": argument(0, words(row_major)),
            "words of the query with the halves swapped": argument(0, words(halves_swapped)),
            "bf16 weights": argument(2, lambda x: x.bfloat16()),
            "int64 lengths": argument(3, lambda x: x.long()),
            "int64 block tables": argument(4, lambda x: x.long()),
            "metadata of another page": argument(5, lambda m: (m[0] * 2, m[1])),
            "block tables that begin at the second block": argument(4, lambda x: x.roll(-1, 1)),
        },
    ),
    *faults_of(
        SELECT,
        {
            "fp32 scores": argument(0, lambda x: x.float()),
            "rows at multiples of 512 bytes": argument(
                0,
                lambda x: x.new_zeros(len(x), x.shape[1] + 256).copy_(
                    torch.nn.functional.pad(x, (0, 256), value=float("-inf"))
                ),
            ),
            "positions by score": option("sorted", lambda _: True),
            "int64 positions": option("indices_type", lambda _: torch.int64),
            "int64 ends": option("end", lambda x: x.long()),
            "none told as -1": option("idx_oob_fill_value", lambda _: -1),
        },
    ),
    *faults_of(
        PREFILL,
        {
            "int64 indices": argument(2, lambda x: x.long()),
            "keys without a head": argument(1, lambda x: x[:, 0]),
            "none as the first key": argument(2, with_columns_of_zeros),
            "a sink of bf16": argument(5, lambda x: None if x is None else x.bfloat16()),
            "no lengths": argument(6, lambda _: None),
        },
    ),
    made("keys in tiles of 32", AT[PREFILL], replaced("ops.attention", "TILE", lambda _: 32)),
    *faults_of(
        DECODE,
        {
            "a cache of bf16": option("is_fp8_kvcache", lambda _: False),
            "int64 indices": option("indices", lambda x: x.long()),
            "none as the first entry": option("indices", with_columns_of_zeros),
            "no lengths of the window": option("topk_length", lambda _: None),
            "no sink": option("attn_sink", lambda _: None),
            "the window in place of the second cache": lambda args, options: options.update(
                {"extra_k_cache": args[1] if options.get("extra_k_cache") is not None else None}
            ),
        },
    ),
    made("entries in tiles of 32", AT[DECODE], replaced("ops.attention", "TILE", lambda _: 32)),
    *faults_of(EXPAND, {"fp32 rows": argument(0, lambda x: x.float())}),
    *faults_of(
        POST,
        {
            "fp32 streams": argument(1, lambda x: x.float()),
            "coefficients of bf16": argument(2, lambda x: x.bfloat16()),
            "mixing by columns": argument(3, column_major),
            "the mixing matrix transposed": argument(3, lambda x: x.transpose(-1, -2).contiguous()),
        },
    ),
    *faults_of(
        COLLAPSE,
        {
            "coefficients of bf16": argument(1, lambda x: x.bfloat16()),
            "streams in the other order": argument(0, lambda x: x.flip(1)),
        },
    ),
    *faults_of(
        ENGRAM,
        {
            "the value before the keys": argument(1, lambda kv: kv.roll(1, 1)),
            "a weight of bf16": argument(2, lambda x: x.bfloat16()),
            "a mask of text rows": option("image_token_mask", lambda m: None if m is None else ~m),
            "no floor": argument(4, lambda _: 0.0),
        },
    ),
    *faults_of(FORMAT, {"weights left in ND": argument(1, lambda _: 2)}),
    made(
        "an emulation that does not say what cpu computes",
        ("backend/test_op_table.py", "plan"),
        replaced("backend", "capabilities", lambda op: lambda plain=(), **facts: op(**facts)),
    ),
]
