"""Indexer scores of FP4 keys, one query row a block of threads: cached keys of any page, and those of candidate blocks
(``spec/kernels.md`` 2.4).

A warp group holds a query row in shared memory as bf16 and walks over keys, 64 at a time. The codes of a tile go from
memory into registers and are multiplied at once, so shared memory sees queries only (``keys.py``).
"""

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.indexer import tensor_core as tc
from deepinfer_cuda.tl.indexer.keys import RELEASED, UNCHECKED, UNSCALED, key_scale, sum_quads, unpack_keys, weigh
from deepinfer_cuda.tl.indexer.queries import QUERIES, THREADS, load_plain_queries, load_queries, load_weights, padded
from deepinfer_cuda.tl.parts.numbers import NUMBERS

CASES = [
    RELEASED | {"page": 64, "block": 8},
    RELEASED | {"page": 0, "block": 8},
    {"heads": 4, "width": 32, "page": 8},
    {"heads": 4, "width": 32, "page": 8, "query": "bf16"},
    {"heads": 4, "width": 32, "page": 0, "block": 4},
]


@kernel(cases=CASES, pass_configs=UNCHECKED)
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
