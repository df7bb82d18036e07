"""Indexer scores of the keys of whole pages: decode (``spec/kernels.md`` 2.4).

The copy engine brings tiles of keys, codes and scales, into a ring of stages in shared memory. The warps of a block
take turns in asking for one: with each tile, for the stage of the tile before, which all of them have left by then. A
warp looks up the pages of 32 tiles at once. A key's score has the same bits as by :mod:`scores`.
"""

from importlib.resources import files

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.indexer import tensor_core as tc
from deepinfer_cuda.tl.indexer.keys import RELEASED, UNCHECKED, UNSCALED, key_scale, sum_quads, unpack_keys, weigh
from deepinfer_cuda.tl.indexer.queries import QUERIES, THREADS, load_plain_queries, load_queries, load_weights, padded
from deepinfer_cuda.tl.parts.numbers import NUMBERS

RING = files("deepinfer_cuda.tl.parts").joinpath("ring.cuh").read_text(encoding="utf-8")
WARP, WARPS = 32, THREADS // 32
CASES = [*(RELEASED | {"page": page} for page in (64, 128)), {"heads": 32, "width": 128, "page": 64}]


@kernel(cases=CASES, pass_configs=UNCHECKED)
def paged_scores(
    *, heads: int, width: int, page: int, query: str = "e2m1", weight: str = "float32", stages: int = 4, blocks: int = 5
):
    """Scores of cached keys, one query row and ``tiles`` tiles of keys a block of threads.

    Arguments: q codes as int32 ``[T, heads, width / 8]`` (or bf16 as int16 ``[T, heads, width]``), their scales uint8
    ``[T, heads, width / 32]``, weights ``[T, heads]``, the cache as bytes (flat), from page to page in units of 16
    bytes, block table int32 ``[T, MB]``, visible entries int32 ``[T]``, tiles of a block, out fp32 ``[T, columns]``:
    written where an entry is visible.

    :param page: entries of a page, whole tiles.
    :param stages: tiles on their way. :param blocks: of a multiprocessor, that registers are left for.
    """
    total, columns, table_width = T.dynamic("total, columns, table_width")
    cache_bytes = T.dynamic("cache_bytes", "int64")
    q_type, q_values, q_group = QUERIES[query]
    stacked, words = padded(heads), width // 32
    code_bytes, scale_bytes = tc.KEYS * width // 2, tc.KEYS * words
    wgmma = tc.has_wgmma()

    @T.macro
    def fetch(cache, codes, factors, full, base, start, tile):
        """Copies a tile of the page that begins at ``base`` to its stage."""
        s, inside = tile % stages, (start + tile * tc.KEYS) % page
        T.call_extern("handle", "di_barrier_expect", T.address_of(full[s]), code_bytes + scale_bytes)
        T.call_extern(
            "handle", "di_copy_bytes", T.address_of(codes[s, 0]), T.address_of(cache[base + inside * (width // 2)]),
            code_bytes, T.address_of(full[s]),
        )  # fmt: skip
        T.call_extern(
            "handle", "di_copy_bytes", T.address_of(factors[s, 0]),
            T.address_of(cache[base + page * (width // 2) + inside * words]), scale_bytes, T.address_of(full[s]),
        )  # fmt: skip

    @T.prim_func
    def paged_scores(
        q: T.Tensor((total, heads, width // q_values), q_type),
        q_sf: T.Tensor((total, heads, width // q_group), "uint8"),
        weights: T.Tensor((total, heads), weight),
        cache: T.Tensor((cache_bytes,), "uint8"),
        stride: T.int32,
        table: T.Tensor((total, table_width), "int32"),
        last: T.Tensor((total,), "int32"),
        tiles: T.int32,
        out: T.Tensor((total, columns), "float32"),
    ):
        with T.Kernel(T.ceildiv(columns, tiles * tc.KEYS), total, threads=THREADS, prelude=NUMBERS + RING) as (part, t):
            T.annotate_min_blocks_per_sm(blocks)
            tx = T.get_thread_binding()
            warp, lane = tx // WARP, tx % WARP
            own, quad = warp * 16 + lane // 4, lane % 4
            queries = T.alloc_shared((stacked * width // 2,), "uint32")
            own_weights = T.alloc_shared((stacked,), "float32")
            codes = T.alloc_shared((stages, code_bytes // 4), "uint32")
            factors = T.alloc_shared((stages, scale_bytes), "uint8")
            full = T.alloc_shared((stages,), "uint64")
            empty = T.alloc_shared((stages,), "uint64")
            loaded = T.alloc_local((2 * words,), "uint32")
            scales = T.alloc_local((2,), "uint32")
            keys = T.alloc_local((width // 4,), "uint32")
            acc = T.alloc_local((stacked // 2,), "float32")
            held = T.alloc_local((stacked // 4,), "float32")
            sums = T.alloc_local((4,), "float32")
            fragment = T.alloc_local((2,), "uint32")
            unit = T.alloc_var("int32")
            base = T.alloc_var("int64")
            left = T.alloc_var("int32")
            at = T.alloc_var("int64")
            start = part * tiles * tc.KEYS
            # Of the next 32 tiles, a lane each; -1 is the null block.
            unit = T.max(table[t, T.min((start + lane * tc.KEYS) // page, table_width - 1)], 0)
            count = T.min(T.min(last[t], columns) - start, tiles * tc.KEYS)
            if count > 0:
                if warp == 0:
                    if lane == 0:
                        for s in T.serial(stages):
                            T.call_extern("handle", "di_barrier_init", T.address_of(full[s]), 1)
                            T.call_extern("handle", "di_barrier_init", T.address_of(empty[s]), WARPS)
                        T.call_extern("handle", "di_barriers_ready")
                    for s in T.serial(stages):
                        base = T.cast(T.shfl_sync(unit, s), "int64") * (stride * 16)
                        if lane == 0 and s * tc.KEYS < count:
                            fetch(cache, codes, factors, full, base, start, s)
                if query == "e2m1":
                    load_queries(q, q_sf, queries, t, total, tx, 1, stacked, heads, width)
                else:
                    load_plain_queries(q, queries, t, total, tx, 1, stacked, heads, width)
                load_weights(weights, own_weights, t, total, tx, 1, stacked, heads)
                T.fence_proxy_async()
                T.sync_threads()
                for j in T.unroll(stacked // 8):
                    for b in T.unroll(2):
                        held[2 * j + b] = own_weights[j * 8 + quad * 2 + b]
                desc = T.alloc_wgmma_desc()
                if wgmma:
                    T.initialize_wgmma_descriptor(desc, T.address_of(queries[0]), 0, 8, width)
                left = count - own - (lane & 1) * 8  # columns from this thread's on
                at = T.cast(start + own + (lane & 1) * 8, "int64")
                for tile in T.serial(T.ceildiv(count, tc.KEYS)):
                    s = tile % stages
                    T.call_extern("handle", "di_barrier_wait", T.address_of(full[s]), tile // stages % 2)
                    for rr in T.unroll(2):
                        for i in T.vectorized(words):
                            loaded[rr * words + i] = codes[s, (own + rr * 8) * (width // 8) + quad * words + i]
                        scales[rr] = key_scale(
                            T.cast(factors[s, (own + rr * 8) * words + quad * width // 128], "uint32")
                        )
                    unpack_keys(loaded, scales, keys, width)
                    if wgmma:
                        tc.start_wgmma(keys, queries, desc, acc, width, stacked)
                    else:
                        tc.multiply_mma(keys, queries, fragment, acc, lane, width, stacked)
                    # The warp multiplies what it read: all of its lanes are past their loads.
                    if lane == 0:
                        T.call_extern("handle", "di_barrier_arrive", T.address_of(empty[s]))
                    ahead = tile - 1 + stages
                    if ahead % WARP == 0:
                        unit = T.max(table[t, T.min((start + (ahead + lane) * tc.KEYS) // page, table_width - 1)], 0)
                    if tile > 0 and tile % WARPS == warp and ahead * tc.KEYS < count:
                        base = T.cast(T.shfl_sync(unit, ahead % WARP), "int64") * (stride * 16)
                        if lane == 0:
                            T.call_extern(
                                "handle", "di_barrier_wait", T.address_of(empty[ahead % stages]),
                                (tile - 1) // stages % 2,
                            )  # fmt: skip
                            fetch(cache, codes, factors, full, base, start, ahead)
                    if wgmma:
                        tc.finish_wgmma(acc, stacked)
                    weigh(acc, held, lambda r, j, b: 2 * j + b, sums, 1, stacked)
                    sum_quads(sums, lane, 2)
                    if (lane & 2) == 0 and left > 0:
                        out[t, at] = sums[0] * UNSCALED
                    left -= tc.KEYS
                    at += tc.KEYS

    return paged_scores
