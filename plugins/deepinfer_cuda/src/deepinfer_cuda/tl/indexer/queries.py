"""Query rows of the indexer and their weights, into shared memory as the product wants them."""

import tilelang.language as T

from deepinfer_cuda.tl.indexer import tensor_core as tc
from deepinfer_cuda.tl.parts.numbers import mul2, ue8m0_pair

THREADS = 128
QUERIES = {"e2m1": ("int32", 8, 32), "bf16": ("int16", 1, 32)}
"""Of a form of queries: the type they are seen as, values an item, values a scale."""
# Codes 0, 4 (or 1, 5) of a word: isolated, then copied so that the sign is the sign and the magnitude is the lowest two
# exponent bits and the highest fraction bit of a bf16.
NEAR, NEAR_COPIES = 0x000F000F, (1 << 12) | (1 << 6)
NEXT, NEXT_COPIES = 0x00F000F0, (1 << 8) | (1 << 2)
BF16_BITS = 0x81C081C0


@T.macro
def unpack_query(word, scale, queries, row, w, quad, width: int):
    """Word ``w`` of quarter ``quad`` of a query row to its four places in shared memory."""
    for i in T.unroll(4):
        shifted = word >> T.uint32(8 * (i // 2))
        mask = T.Select(i % 2 == 0, T.uint32(NEAR), T.uint32(NEXT))
        copies = T.Select(i % 2 == 0, T.uint32(NEAR_COPIES), T.uint32(NEXT_COPIES))
        bits = ((shifted & mask) * copies) & T.uint32(BF16_BITS)
        pair = mul2(mul2(bits, T.uint32(0x7E807E80)), scale)
        queries[tc.core_offset(row, 4 * w + i, quad, width) // 2] = pair


@T.macro
def load_queries(q, q_sf, queries, row0, total, tx, rows: int, heads: int, given: int, width: int):
    """``rows`` query rows of E2M1 codes from ``row0`` as bf16 into shared memory, zeros past the given heads."""
    words = width // 32
    for it in T.serial(T.ceildiv(rows * heads * 4 * words, THREADS)):
        item = it * THREADS + tx
        n = (item // 4) % (rows * heads)
        w = item // (4 * rows * heads)
        quad = item % 4
        row = T.min(row0 + n // heads, total - 1)
        if item < rows * heads * 4 * words:
            known = T.min(n % heads, given - 1)
            word = T.alloc_var("uint32")
            word = T.cast(q[row, known, quad * words + w], "uint32")
            word = T.if_then_else(n % heads < given, word, T.uint32(0))
            unpack_query(
                word, ue8m0_pair(T.cast(q_sf[row, known, quad * width // 128], "uint32")), queries, n, w, quad, width
            )


@T.macro
def load_plain_queries(q, queries, row0, total, tx, rows: int, heads: int, given: int, width: int):
    """The same of bf16 rows, seen as int16."""
    pairs = width // 8
    for it in T.serial(T.ceildiv(rows * heads * 4 * pairs, THREADS)):
        item = it * THREADS + tx
        n = (item // 4) % (rows * heads)
        p = item // (4 * rows * heads)
        quad = item % 4
        row = T.min(row0 + n // heads, total - 1)
        if item < rows * heads * 4 * pairs:
            at = quad * (width // 4) + (p // 4) * 8 + p % 4
            known = T.min(n % heads, given - 1)
            near = T.cast(T.cast(q[row, known, at], "uint16"), "uint32")
            far = T.cast(T.cast(q[row, known, at + 4], "uint16"), "uint32")
            pair = T.if_then_else(n % heads < given, near | (far << T.uint32(16)), T.uint32(0))
            queries[tc.core_offset(n, p, quad, width) // 2] = pair


@T.macro
def load_weights(weights, own_weights, row0, total, tx, rows: int, heads: int, given: int):
    """Weights of the rows in fp32, zeros past the given heads."""
    for it in T.serial(T.ceildiv(rows * heads, THREADS)):
        n = it * THREADS + tx
        if n < rows * heads:
            weight = T.cast(weights[T.min(row0 + n // heads, total - 1), T.min(n % heads, given - 1)], "float32")
            own_weights[n] = T.if_then_else(n % heads < given, weight, 0.0)


def padded(heads: int) -> int:
    """Heads as the product takes them: whole eights."""
    return -(-heads // 8) * 8
