"""Move rows between token order and expert order: gather for the products, weighted sums back (combine)."""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.parts.numbers import NUMBERS, hi, lo, pack

THREADS = 128


@kernel(cases=[{"width": 5120, "choices": 6}, {"width": 256, "choices": 2}])
def gather_rows(*, width: int, choices: int) -> Any:
    """``out[r] = x[pair_of[r] // choices]``, bf16 as words of two; rows of pair -1 are left alone."""
    tokens, rows = T.dynamic("tokens"), T.dynamic("rows")
    words = width // 2
    vectors = words // 4

    @T.prim_func
    def gather_rows(
        x: T.Tensor((tokens, words), "uint32"),
        pair_of: T.Tensor((rows,), "int32"),
        out: T.Tensor((rows, words), "uint32"),
    ):
        with T.Kernel(rows, threads=THREADS) as row:
            tx = T.get_thread_binding()
            pair = pair_of[row]
            if pair >= 0:
                for i in T.unroll(T.ceildiv(vectors, THREADS)):
                    if i * THREADS + tx < vectors:
                        for u in T.vectorized(4):
                            out[row, (i * THREADS + tx) * 4 + u] = x[pair // choices, (i * THREADS + tx) * 4 + u]

    return gather_rows


@kernel(cases=[{"width": 5120, "choices": 6, "shared": True}, {"width": 256, "choices": 2, "shared": True}])
def combine_rows(*, width: int, choices: int, shared: bool) -> Any:
    """``out[t] =`` the rows of token t in fp32, lowest row (= lowest expert id) first, then ``bias[t]``; bf16."""
    tokens, rows = T.dynamic("tokens"), T.dynamic("rows")
    words = width // 2
    span = 4 * THREADS

    @T.prim_func
    def combine_rows(
        y: T.Tensor((rows, words), "uint32"),
        row_of: T.Tensor((tokens, choices), "int32"),
        bias: T.Tensor((tokens, words), "uint32"),
        out: T.Tensor((tokens, words), "uint32"),
    ):
        with T.Kernel(tokens, T.ceildiv(words, span), threads=THREADS, prelude=NUMBERS) as (token, part):
            tx = T.get_thread_binding()
            order = T.alloc_local((choices,), "int32")
            low = T.alloc_local((4,), "float32")
            high = T.alloc_local((4,), "float32")
            piece = T.alloc_local((choices, 4), "uint32")
            last = T.alloc_local((4,), "uint32")
            at = part * span + tx * 4
            for i in T.unroll(choices):
                order[i] = row_of[token, i]
            # A network of compare and swap: rows ascend with the expert id, and -1 (masked) stands first.
            for i in T.unroll(choices):
                for j in T.unroll(choices - 1):
                    if j < choices - 1 - i:
                        small = T.min(order[j], order[j + 1])
                        large = T.max(order[j], order[j + 1])
                        order[j] = small
                        order[j + 1] = large
            if at < words:
                for i in T.unroll(choices):
                    for u in T.vectorized(4):
                        piece[i, u] = T.if_then_else(order[i] >= 0, y[T.max(order[i], 0), at + u], T.uint32(0))
                if shared:
                    for u in T.vectorized(4):
                        last[u] = bias[token, at + u]
                for u in T.unroll(4):
                    low[u] = 0.0
                    high[u] = 0.0
                for i in T.unroll(choices):
                    for u in T.unroll(4):
                        low[u] += lo(piece[i, u])
                        high[u] += hi(piece[i, u])
                for u in T.unroll(4):
                    if shared:
                        low[u] += lo(last[u])
                        high[u] += hi(last[u])
                    last[u] = pack(low[u], high[u])
                for u in T.vectorized(4):
                    out[token, at + u] = last[u]

    return combine_rows
