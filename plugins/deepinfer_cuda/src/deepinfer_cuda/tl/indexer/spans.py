"""Indexer scores of gathered FP4 keys, several query rows a block of threads: prefill (``spec/kernels.md`` 2.4).

As in :mod:`scores`, with the queries of all rows of a block beside each other, so that a key is unpacked once for them.
"""

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.indexer import tensor_core as tc
from deepinfer_cuda.tl.indexer.keys import RELEASED, UNCHECKED, UNSCALED, key_scale, sum_quads, unpack_keys, weigh
from deepinfer_cuda.tl.indexer.queries import QUERIES, THREADS, load_plain_queries, load_queries, load_weights, padded
from deepinfer_cuda.tl.parts.numbers import NUMBERS

CASES = [*(RELEASED | {"rows": 8, "chunk": chunk} for chunk in (1024, 4096)), {"heads": 4, "width": 32, "rows": 8}]


@kernel(cases=CASES, pass_configs=UNCHECKED)
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
