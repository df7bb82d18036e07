"""Indexer scores ``sum_h relu(q_h . k) * w_h`` of FP4 keys (``spec/kernels.md`` 2.4).

A warp group holds ``rows`` query rows in shared memory as bf16 and walks over keys, 64 at a time. The codes of a tile
go from memory into registers, become bf16 there (exact: a code times its power of two) and are multiplied at once, so
shared memory sees queries only. A thread then has two keys and every fourth pair of heads of each row: relu, weight,
sum over its heads in ascending order, then over the four threads that share the keys. A score therefore has the same
bits whatever other rows and keys there are, in prefill and in decode.

The bf16 operand carries a factor ``2^-BIAS``, so that one multiplication undoes both the offset of the code and the
scale; keys are exact for scales from ``2^-78`` to ``2^49`` (larger ones are taken as that).
"""

from typing import Any

import tilelang
import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.indexer import tensor_core as tc
from deepinfer_cuda.tl.indexer.queries import (
    BF16_BITS,
    NEAR,
    NEAR_COPIES,
    NEXT,
    NEXT_COPIES,
    QUERIES,
    THREADS,
    load_plain_queries,
    load_queries,
    load_weights,
    padded,
)
from deepinfer_cuda.tl.parts.numbers import NUMBERS, mul2

BIAS = 48
UNSCALED = 2.0 ** (BIAS - 1)
"""Undoes the factor of the keys, and halves what :func:`weigh` sums."""
UNCHECKED = {
    tilelang.PassConfigKey.TL_DISABLE_SAFE_MEMORY_ACCESS: True,
    tilelang.PassConfigKey.TL_DISABLE_BUFFER_INIT_CHECK: True,
}
"""Indices are clamped where they are made; TileLang's own checks would split the vector loads."""


@T.macro
def unpack_keys(words, scales, keys, width: int):
    """Two keys' quarters, ``width / 32`` words each, to the registers of the product."""
    for rr in T.unroll(2):
        for w in T.unroll(width // 32):
            for i in T.unroll(4):
                word = words[rr * (width // 32) + w] >> T.uint32(8 * (i // 2))
                mask = T.Select(i % 2 == 0, T.uint32(NEAR), T.uint32(NEXT))
                copies = T.Select(i % 2 == 0, T.uint32(NEAR_COPIES), T.uint32(NEXT_COPIES))
                bits = ((word & mask) * copies) & T.uint32(BF16_BITS)
                keys[(w * 2 + i // 2) * 4 + (i % 2) * 2 + rr] = mul2(bits, scales[rr])


def key_scale(byte: Any) -> Any:
    """The pair that turns unpacked bits into the key over ``2^BIAS``."""
    return T.min(byte + T.uint32(126 - BIAS), T.uint32(254)) * T.uint32(0x00800080)


@T.macro
def weigh(acc, weights, place, part, rows: int, heads: int):
    """Relu, weights and the sum over this thread's heads: ``part[rr * rows + r]`` for its two keys, twice what it is.

    ``x + |x|`` is twice the relu of ``x``: an addition runs at twice the rate of a maximum.

    :param place: ``place(r, j, b)`` says where the weight of head ``8 j + 2 quad + b`` of a row lies.
    """
    for rr in T.unroll(2):
        for r in T.unroll(rows):
            part[rr * rows + r] = 0.0
    for r in T.unroll(rows):
        for j in T.unroll(heads // 8):
            for b in T.unroll(2):
                w = weights[place(r, j, b)]
                for rr in T.unroll(2):
                    x = acc[(r * (heads // 8) + j) * 4 + rr * 2 + b]
                    part[rr * rows + r] += (x + T.abs(x)) * w


@T.macro
def sum_quads(part, lane, values: int):
    """Sums over the threads of a quad, ``(0 + 1) + (2 + 3)``: thread ``c`` gets those of values ``4 q + c`` in
    ``part[q]``; of two values, threads 0 and 1 (and 2 and 3) get one each."""
    odd = (lane & 1) == 1
    high = (lane & 2) == 2
    if values == 2:
        mine = T.alloc_var("float32")
        mine = T.if_then_else(odd, part[1], part[0])
        mine += T.shfl_xor(T.if_then_else(odd, part[0], part[1]), 1)
        part[0] = mine + T.shfl_xor(mine, 2)
    else:
        for q in T.unroll(values // 4):
            low = T.alloc_var("float32")
            far = T.alloc_var("float32")
            low = T.if_then_else(odd, part[4 * q + 1], part[4 * q])
            low += T.shfl_xor(T.if_then_else(odd, part[4 * q], part[4 * q + 1]), 1)
            far = T.if_then_else(odd, part[4 * q + 3], part[4 * q + 2])
            far += T.shfl_xor(T.if_then_else(odd, part[4 * q + 2], part[4 * q + 3]), 1)
            part[q] = T.if_then_else(high, far, low) + T.shfl_xor(T.if_then_else(high, low, far), 2)


RELEASED = {"heads": 32, "width": 128, "weight": "bfloat16"}
"""What the released model's steps ask for; fp32 weights are for tests and benchmarks."""
ROW_CASES = [
    *(RELEASED | {"page": page, "chunk": chunk} for page in (64, 128) for chunk in (128, 256, 512, 1024)),
    RELEASED | {"page": 64, "block": 8},
    RELEASED | {"page": 0, "block": 8},
    {"heads": 32, "width": 128, "page": 64},
    {"heads": 4, "width": 32, "page": 8},
    {"heads": 4, "width": 32, "page": 8, "query": "bf16"},
    {"heads": 4, "width": 32, "page": 0, "block": 4},
]
SPAN_CASES = [*(RELEASED | {"rows": 8, "chunk": chunk} for chunk in (1024, 4096)), {"heads": 4, "width": 32, "rows": 8}]


@kernel(cases=ROW_CASES, pass_configs=UNCHECKED)
def row_scores(
    *,
    heads: int,
    width: int,
    page: int,
    block: int = 0,
    query: str = "e2m1",
    weight: str = "float32",
    chunk: int = 1024,
):
    """Scores of cached or gathered keys, one query row a block of threads.

    Arguments: q codes as int32 ``[T, heads, width / 8]`` (or bf16 as int16 ``[T, heads, width]``), their scales uint8
    ``[T, heads, width / 32]``, weights ``[T, heads]``, keys as int32 words and as bytes (flat), from block to block in
    units of 16 bytes, block table int32 ``[T, MB]``, first key int32 ``[T]``, visible entries int32 ``[T]``, candidate
    blocks int32 ``[T, nb]``, out fp32 ``[T, columns]``: written where an entry is visible.

    :param page: entries of a page. 0: keys are gathered, words hold data and bytes hold scales; a row's keys are those
        from its first to before its visible one.
    :param block: with candidates: entries of a block; visible entries of other blocks become -inf.
    """
    total, columns, table_width, chosen = T.dynamic("total, columns, table_width, chosen")
    cache_words, cache_bytes = T.dynamic("cache_words", "int64"), T.dynamic("cache_bytes", "int64")
    q_type, q_values, q_group = QUERIES[query]
    stacked, words = padded(heads), width // 32
    blocks = chunk // block if block else 1
    wgmma = tc.has_wgmma()

    @T.prim_func
    def row_scores(
        q: T.Tensor((total, heads, width // q_values), q_type),
        q_sf: T.Tensor((total, heads, width // q_group), "uint8"),
        weights: T.Tensor((total, heads), weight),
        cache: T.Tensor((cache_words,), "int32"),
        cache8: T.Tensor((cache_bytes,), "uint8"),
        stride: T.int32,
        table: T.Tensor((total, table_width), "int32"),
        first: T.Tensor((total,), "int32"),
        last: T.Tensor((total,), "int32"),
        candidates: T.Tensor((total, chosen), "int32"),
        out: T.Tensor((total, columns), "float32"),
    ):
        with T.Kernel(T.ceildiv(columns, chunk), total, threads=THREADS, prelude=NUMBERS) as (part_id, t):
            tx = T.get_thread_binding()
            lane = tx % 32
            own = (tx // 32) * 16 + lane // 4
            quad = lane % 4
            queries = T.alloc_shared((stacked * width // 2,), "uint32")
            own_weights = T.alloc_shared((stacked,), "float32")
            marks = T.alloc_shared((blocks,), "int32")
            listed = T.alloc_shared((blocks,), "int32")
            many = T.alloc_shared((1,), "int32")
            coming = T.alloc_local((2 * words,), "int32")
            coming_sf = T.alloc_local((2,), "uint32")
            loaded = T.alloc_local((2 * words,), "uint32")
            scales = T.alloc_local((2,), "uint32")
            keys = T.alloc_local((width // 4,), "uint32")
            acc = T.alloc_local((stacked // 2,), "float32")
            part = T.alloc_local((4,), "float32")
            fragment = T.alloc_local((2,), "uint32")
            count = T.alloc_var("int32")
            key0 = first[t] if page == 0 else 0
            visible = T.min(last[t] - key0, columns)
            start = part_id * chunk
            stop = T.min(visible, start + chunk)
            count = stop - start

            if block > 0 and start < visible:
                for i in T.serial(T.ceildiv(stop - start, THREADS)):
                    if start + i * THREADS + tx < stop:
                        out[t, start + i * THREADS + tx] = -T.infinity("float32")
                for i in T.serial(T.ceildiv(blocks, THREADS)):
                    if i * THREADS + tx < blocks:
                        marks[i * THREADS + tx] = 0
                T.sync_threads()
                for i in T.serial(T.ceildiv(chosen, THREADS)):
                    if i * THREADS + tx < chosen:
                        which = candidates[t, i * THREADS + tx] - part_id * blocks
                        if which >= 0 and which < T.ceildiv(stop - start, block):
                            marks[which] = 1
                T.sync_threads()
                if tx < 32:
                    listed_count = T.alloc_var("int32")
                    listed_count = 0
                    for i in T.serial(T.ceildiv(blocks, 32)):
                        marked = T.if_then_else(i * 32 + lane < blocks, marks[T.min(i * 32 + lane, blocks - 1)], 0)
                        votes = T.cast(T.ballot_sync(marked == 1), "uint32")
                        ahead = T.cast(
                            T.popcount(votes & ((T.uint32(1) << T.cast(lane, "uint32")) - T.uint32(1))), "int32"
                        )
                        if marked == 1:
                            listed[listed_count + ahead] = i * 32 + lane
                        listed_count += T.cast(T.popcount(votes), "int32")
                    if lane == 0:
                        many[0] = listed_count
                T.sync_threads()
                count = many[0] * block
            if count > 0:
                if query == "e2m1":
                    load_queries(q, q_sf, queries, t, total, tx, 1, stacked, heads, width)
                else:
                    load_plain_queries(q, queries, t, total, tx, 1, stacked, heads, width)
                load_weights(weights, own_weights, t, total, tx, 1, stacked, heads)
                T.fence_proxy_async()
                T.sync_threads()
                desc = T.alloc_wgmma_desc()
                if wgmma:
                    T.initialize_wgmma_descriptor(desc, T.address_of(queries[0]), 0, 8, width)
                for tile in T.serial(T.ceildiv(count, tc.KEYS) + 1):
                    for i in T.unroll(2 * words):
                        loaded[i] = T.cast(coming[i], "uint32")
                    for i in T.unroll(2):
                        scales[i] = coming_sf[i]
                    for rr in T.unroll(2):
                        nth = T.min(tile * tc.KEYS + own + rr * 8, count - 1)
                        column = listed[nth // block] * block + nth % block if block > 0 else nth
                        entry = T.min(start + column, visible - 1) + key0
                        if page > 0:
                            unit = T.max(table[t, T.min(entry // page, table_width - 1)], 0)  # -1: the null block
                            base = T.cast(unit, "int64") * stride  # in units of 16 bytes
                            at = base * 4 + entry % page * (width // 8) + quad * words
                            sf_at = base * 16 + page * (width // 2) + entry % page * words + quad * width // 128
                            for i in T.vectorized(words):
                                coming[rr * words + i] = cache[at + i]
                            coming_sf[rr] = key_scale(T.cast(cache8[sf_at], "uint32"))
                        else:
                            at = T.cast(entry, "int64") * (width // 8) + quad * words
                            sf_at = T.cast(entry, "int64") * words + quad * width // 128
                            for i in T.vectorized(words):
                                coming[rr * words + i] = cache[at + i]
                            coming_sf[rr] = key_scale(T.cast(cache8[sf_at], "uint32"))
                    if tile > 0:
                        unpack_keys(loaded, scales, keys, width)
                        if wgmma:
                            tc.multiply_wgmma(keys, queries, desc, acc, width, stacked)
                        else:
                            tc.multiply_mma(keys, queries, fragment, acc, lane, width, stacked)
                        weigh(acc, own_weights, lambda r, j, b: r * stacked + j * 8 + quad * 2 + b, part, 1, stacked)
                        sum_quads(part, lane, 2)
                        nth = (tile - 1) * tc.KEYS + own + (lane & 1) * 8
                        if (lane & 2) == 0 and nth < count:
                            column = start + (listed[nth // block] * block + nth % block if block > 0 else nth)
                            if column < stop:
                                out[t, column] = part[0] * UNSCALED

    return row_scores


@kernel(cases=SPAN_CASES, pass_configs=UNCHECKED)
def span_scores(*, heads: int, width: int, rows: int, query: str = "e2m1", weight: str = "float32", chunk: int = 1024):
    """Scores of gathered keys, ``rows`` (4 or 8) query rows a block of threads.

    Arguments: q, its scales and weights as for :data:`row_scores`, keys as int32
    ``[S, width / 8]``, their scales uint8 ``[S, width / 32]``, first and past-the-last
    key of each row int32 ``[T]``, out fp32 ``[T, columns]``: column c of a row is its key ``first + c``.
    """
    total, columns, stored = T.dynamic("total"), T.dynamic("columns"), T.dynamic("stored")
    q_type, q_values, q_group = QUERIES[query]
    each = padded(heads)
    stacked, words, values = rows * each, width // 32, 2 * rows
    wgmma = tc.has_wgmma()

    @T.prim_func
    def span_scores(
        q: T.Tensor((total, heads, width // q_values), q_type),
        q_sf: T.Tensor((total, heads, width // q_group), "uint8"),
        weights: T.Tensor((total, heads), weight),
        keys_data: T.Tensor((stored, width // 8), "int32"),
        keys_sf: T.Tensor((stored, width // 32), "uint8"),
        first: T.Tensor((total,), "int32"),
        last: T.Tensor((total,), "int32"),
        out: T.Tensor((total, columns), "float32"),
    ):
        with T.Kernel(T.ceildiv(columns, chunk), T.ceildiv(total, rows), threads=THREADS, prelude=NUMBERS) as (
            part_id,
            group,
        ):
            tx = T.get_thread_binding()
            lane = tx % 32
            own = (tx // 32) * 16 + lane // 4
            quad = lane % 4
            queries = T.alloc_shared((stacked * width // 2,), "uint32")
            own_weights = T.alloc_shared((stacked,), "float32")
            begins = T.alloc_shared((rows,), "int32")
            ends = T.alloc_shared((rows,), "int32")
            coming = T.alloc_local((2 * words,), "int32")
            coming_sf = T.alloc_local((2,), "uint32")
            loaded = T.alloc_local((2 * words,), "uint32")
            scales = T.alloc_local((2,), "uint32")
            keys = T.alloc_local((width // 4,), "uint32")
            acc = T.alloc_local((stacked // 2,), "float32")
            part = T.alloc_local((values,), "float32")
            fragment = T.alloc_local((2,), "uint32")
            row0 = group * rows
            low = T.alloc_var("int32", init=2147483647)
            high = T.alloc_var("int32", init=0)

            for r in T.serial(rows):
                if row0 + r < total and first[row0 + r] < last[row0 + r]:
                    low = T.min(low, first[row0 + r])
                    high = T.max(high, T.min(last[row0 + r], first[row0 + r] + columns))
            low = T.min(low, high)  # no row has keys: an empty range, whose chunks do not overflow
            if tx < rows:
                begins[tx] = T.if_then_else(row0 + tx < total, first[T.min(row0 + tx, total - 1)], 0)
                ends[tx] = T.if_then_else(row0 + tx < total, last[T.min(row0 + tx, total - 1)], 0)
            high = T.min(high, stored)
            if low + part_id * chunk < high:
                if query == "e2m1":
                    load_queries(q, q_sf, queries, row0, total, tx, rows, each, heads, width)
                else:
                    load_plain_queries(q, queries, row0, total, tx, rows, each, heads, width)
                load_weights(weights, own_weights, row0, total, tx, rows, each, heads)
                T.fence_proxy_async()
                T.sync_threads()
                desc = T.alloc_wgmma_desc()
                if wgmma:
                    T.initialize_wgmma_descriptor(desc, T.address_of(queries[0]), 0, 8, width)
                # Rows of several sequences may span more keys than a row has columns: then chunks are taken in turns.
                for turn in T.serial(T.ceildiv(high - low - part_id * chunk, T.ceildiv(columns, chunk) * chunk)):
                    start = low + (turn * T.ceildiv(columns, chunk) + part_id) * chunk
                    stop = T.min(high, start + chunk)
                    for tile in T.serial(T.ceildiv(stop - start, tc.KEYS) + 1):
                        for i in T.unroll(2 * words):
                            loaded[i] = T.cast(coming[i], "uint32")
                        for i in T.unroll(2):
                            scales[i] = coming_sf[i]
                        for rr in T.unroll(2):
                            key = T.min(start + tile * tc.KEYS + own + rr * 8, stop - 1)
                            for i in T.vectorized(words):
                                coming[rr * words + i] = keys_data[key, quad * words + i]
                            coming_sf[rr] = key_scale(T.cast(keys_sf[key, quad * width // 128], "uint32"))
                        if tile > 0:
                            unpack_keys(loaded, scales, keys, width)
                            if wgmma:
                                tc.multiply_wgmma(keys, queries, desc, acc, width, stacked)
                            else:
                                tc.multiply_mma(keys, queries, fragment, acc, lane, width, stacked)
                            weigh(acc, own_weights, lambda r, j, b: r * each + j * 8 + quad * 2 + b, part, rows, each)
                            sum_quads(part, lane, values)
                            for v in T.unroll(values // 4):
                                r = (v * 4 + quad) % rows
                                key = start + (tile - 1) * tc.KEYS + own + (v * 4 + quad) // rows * 8
                                column = key - begins[r]
                                if column >= 0 and key < T.min(ends[r], stop) and column < columns:
                                    out[row0 + r, column] = part[v] * UNSCALED

    return span_scores
