"""Engram: table rows of n-grams, their values, and the gated addition (``spec/model.md`` 2.3)."""

from importlib.resources import files
from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.parts.numbers import NUMBERS, e4m3_pair, mul2, ue8m0_pair

GATE = files(f"{__package__}.parts").joinpath("gate.cuh").read_text(encoding="utf-8")
LANES = 8
"""Positions of a 16-byte access to bf16."""


@kernel(cases=[{"grams": 4, "columns": 24, "ids": "int32"}, {"grams": 4, "columns": 6, "ids": "int32"}])
def hash_rows(*, grams: int, columns: int, ids: str, threads: int = 128) -> Any:
    """``(xor of id_r * multiplier_r up to the column's order) mod prime + offset``: a thread a row and column."""
    count = T.dynamic("count")
    heads = columns // (grams - 1)

    @T.prim_func
    def hash_rows(
        windows: T.Tensor((count, grams), ids),
        multipliers: T.Tensor((grams,), "int64"),
        primes: T.Tensor((columns,), "int64"),
        offsets: T.Tensor((columns,), "int64"),
        rows: T.Tensor((count, columns), "int64"),
    ):
        with T.Kernel(T.ceildiv(count * columns, threads), threads=threads) as block:
            at = block * threads + T.get_thread_binding()
            value = T.alloc_local((1,), "int64")
            if at < count * columns:
                row, column = at // columns, at % columns
                value[0] = T.cast(windows[row, 0], "int64") * multipliers[0]
                for n in T.unroll(1, grams):
                    if n <= column // heads + 1:
                        value[0] = value[0] ^ (T.cast(windows[row, n], "int64") * multipliers[n])
                # Products and primes are positive, so the unsigned remainder is the one that is wanted.
                rest = T.cast(value[0], "uint64") % T.cast(primes[column], "uint64")
                rows[row, column] = T.cast(rest, "int64") + offsets[column]

    return hash_rows


@kernel(cases=[{"columns": 24, "width": 256, "rows": "int64"}, {"columns": 6, "width": 32, "rows": "int64"}])
def fetch_rows(*, columns: int, width: int, rows: str, threads: int = 128) -> Any:
    """Rows of an E4M3 table with a scale for each 32 values, as bf16 side by side; a thread has 16 codes."""
    count, entries = T.dynamic("count"), T.dynamic("entries")
    each = width // 16

    @T.prim_func
    def fetch_rows(
        index: T.Tensor((count * columns,), rows),
        codes: T.Tensor((entries, width // 4), "uint32"),
        scales: T.Tensor((entries, width // 32), "uint8"),
        out: T.Tensor((count * columns, width // 2), "uint32"),
    ):
        with T.Kernel(T.ceildiv(count * columns * each, threads), threads=threads, prelude=NUMBERS) as block:
            at = block * threads + T.get_thread_binding()
            four = T.alloc_local((4,), "uint32")
            pairs = T.alloc_local((8,), "uint32")
            factor = T.alloc_local((1,), "uint32")
            if at < count * columns * each:
                place, part = at // each, at % each
                row = index[place]
                for v in T.vectorized(4):
                    four[v] = codes[row, part * 4 + v]
                factor[0] = ue8m0_pair(T.cast(scales[row, part // 2], "uint32"))
                for v in T.unroll(8):
                    pairs[v] = mul2(e4m3_pair(four[v // 2], v % 2), factor[0])
                for h in T.unroll(2):
                    for v in T.vectorized(4):
                        out[place, part * 8 + h * 4 + v] = pairs[h * 4 + v]

    return fetch_rows


def gate_threads(width: int) -> int:
    """Threads of a block over a stream of ``width``, eight positions or a multiple of that each."""
    return next((n for n in (320, 256, 128, 64, 32) if width % (LANES * n) == 0), 0)


@kernel(
    cases=[{"streams": 4, "width": 5120, "masked": False}, {"streams": 4, "width": 256, "masked": False}],
)
def gate_streams(*, streams: int, width: int, masked: bool, blocks: int = 1024, residents: int = 3) -> Any:
    """``X_j + g_j v``: a block has one stream of every so many rows and keeps the stream's norm weights."""
    count = T.dynamic("count")
    threads = gate_threads(width)
    each = width // (LANES * threads)

    @T.prim_func
    def gate_streams(
        x: T.Tensor((count, streams, width), "bfloat16"),
        kv: T.Tensor((count, streams + 1, width), "bfloat16"),
        weight: T.Tensor((streams, width), "float32"),
        mask: T.Tensor((count if masked else 1,), "bool"),
        out: T.Tensor((count, streams, width), "bfloat16"),
        norm_eps: T.float32,
        grid: T.int32,
    ):
        with T.Kernel(streams, grid, threads=threads, prelude=GATE) as (j, first):
            T.annotate_min_blocks_per_sm(residents)
            thread = T.get_thread_binding()
            w = T.alloc_local((each, LANES), "float32")
            xs = T.alloc_local((each, LANES), "bfloat16")
            key = T.alloc_local((each, LANES), "bfloat16")
            value = T.alloc_local((each, LANES), "bfloat16")
            sums = T.alloc_local((3,), "float32")
            g = T.alloc_local((1,), "float32")
            scratch = T.alloc_shared((2 * 3 * (threads // 32),), "float32")
            for e in T.unroll(each):
                for v in T.vectorized(LANES):
                    w[e, v] = weight[j, (e * threads + thread) * LANES + v]
            for turn in T.serial(T.ceildiv(count - first, grid)):
                row = first + turn * grid
                for e in T.unroll(each):
                    for v in T.vectorized(LANES):
                        xs[e, v] = x[row, j, (e * threads + thread) * LANES + v]
                    for v in T.vectorized(LANES):
                        key[e, v] = kv[row, j, (e * threads + thread) * LANES + v]
                for e in T.unroll(each):
                    for v in T.vectorized(LANES):
                        value[e, v] = kv[row, streams, (e * threads + thread) * LANES + v]
                for i in T.unroll(3):
                    sums[i] = 0.0
                for e in T.unroll(each):
                    for v in T.unroll(LANES):
                        sums[0] += T.cast(xs[e, v], "float32") * w[e, v] * T.cast(key[e, v], "float32")
                        sums[1] += T.cast(xs[e, v], "float32") * T.cast(xs[e, v], "float32")
                        sums[2] += T.cast(key[e, v], "float32") * T.cast(key[e, v], "float32")
                T.call_extern(
                    "handle",
                    f"di_block_sum3<{threads // 32}>",
                    T.address_of(sums[0]),
                    T.address_of(scratch[0]),
                    thread,
                    turn % 2,
                )
                g[0] = T.call_pure_extern(
                    "float32",
                    "di_gate",
                    sums[0]
                    * T.rsqrt(sums[1] / width + norm_eps)
                    * T.rsqrt(sums[2] / width + norm_eps)
                    * T.float32(width**-0.5),
                )
                if masked:
                    g[0] = T.if_then_else(mask[row], g[0], 0.0)
                for e in T.unroll(each):
                    for v in T.unroll(LANES):
                        xs[e, v] = T.cast(
                            T.cast(xs[e, v], "float32") + g[0] * T.cast(value[e, v], "float32"), "bfloat16"
                        )
                    for v in T.vectorized(LANES):
                        out[row, j, (e * threads + thread) * LANES + v] = xs[e, v]

    return gate_streams
