"""Hyper-connections: the logits of the mixing coefficients, the coefficients, and the mixing (``spec/model.md`` 2.4).

The streams are read once by :func:`mix_logits`: it multiplies them by the matrix of the coefficients, adds up their
squares and collapses them into the sublayer's input. The matrix is fp32 and the streams bf16; it is held as three bf16
parts whose sum it is to the last bit, so that every product of the matrix units is exact, and 256 inputs are added up
before a sum leaves them (they round towards zero). Slices are added in one order: within groups, then over groups.
"""

from importlib.resources import files
from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel

STREAMS = files(f"{__package__}.parts").joinpath("streams.cuh").read_text(encoding="utf-8")
SLICE = 64
"""Positions of every stream that a slice covers."""
PARTS = 3
LANES = 32
"""Columns of a part of the matrix, and values of a row's partial result: the logits, then the sum of squares."""
FEW = {"rows": 64, "stages": 4, "blocks": 2}
MANY = {"rows": 128, "stages": 3, "blocks": 1}
"""Blocks of :func:`mix_logits` for a step of decode, and for many rows."""
RUNS = (1, 2, 4, 5)
"""Slices that a block takes one after the other."""
REGISTERS = 65536
"""Of a multiprocessor."""


def groups_of(slices: int) -> int:
    """Slices in a group: a fixed cut of the sum, for few rows (a block a slice) and many (a block a group)."""
    return next(n for n in (10, 8, 5, 4, 2, 1) if slices % n == 0)


def threads_of(width: int) -> int:
    """Threads of a block where each has eight positions; 0: none fits."""
    return next((n for n in (128, 64, 32) if width % (8 * n) == 0), 0)


def consumer_registers(threads: int, blocks: int) -> int:
    """Registers of a computing thread where ``blocks`` of ``threads`` + 128 that load share a multiprocessor."""
    launched = REGISTERS // (blocks * (threads + 128)) // 8 * 8
    return min(240, (launched * (threads + 128) - 24 * 128) // threads // 8 * 8)


@kernel(
    cases=[
        *({"streams": 4, "width": 5120, "grouped": False, **FEW, "run": run} for run in RUNS),
        {"streams": 4, "width": 5120, "grouped": True, **MANY},
        {"streams": 4, "width": 256, "grouped": False, **FEW, "run": 1},
    ]
)
def mix_logits(*, streams: int, width: int, grouped: bool, rows: int, stages: int, blocks: int, run: int = 1) -> Any:
    """Partial logits and squares of ``[T, c, H]`` streams, and their collapse by ``a``.

    :param grouped: of each group of slices one sum, made by one block. :param run: else, slices that a block takes one
        after the other, a sum of each.
    """
    count = T.dynamic("count")
    slices, columns = width // SLICE, streams * (streams + 2)
    each = groups_of(slices) if grouped else run
    sums_of_a_row = slices // each if grouped else slices
    wide, threads = PARTS * LANES, 2 * rows

    @T.macro
    def keep(partial, logits, square, at, bm):
        for i, c in T.Parallel(rows, LANES):
            if bm * rows + i < count and c < columns:
                partial[at, bm * rows + i, c] = logits[i, c]
        for i in T.Parallel(rows):
            if bm * rows + i < count:
                partial[at, bm * rows + i, columns] = square[i]

    @T.prim_func
    def mix_logits(
        stream: T.Tensor((count, streams * width), "bfloat16"),
        a: T.Tensor((count, streams), "float32"),
        matrix: T.Tensor((slices * streams * wide, SLICE), "bfloat16"),
        partial: T.Tensor((sums_of_a_row, count, LANES), "float32"),
        x: T.Tensor((count, width), "bfloat16"),
    ):
        with T.Kernel(slices // each, T.ceildiv(count, rows), threads=threads) as (bs, bm):
            T.annotate_min_blocks_per_sm(blocks)
            T.annotate_producer_reg_dealloc(24)
            T.annotate_consumer_reg_alloc(consumer_registers(threads, blocks))
            zs = T.alloc_shared((rows, SLICE), "bfloat16")
            high = T.alloc_shared((LANES, SLICE), "bfloat16")
            middle = T.alloc_shared((LANES, SLICE), "bfloat16")
            low = T.alloc_shared((LANES, SLICE), "bfloat16")
            weights = T.alloc_shared((rows, streams), "float32")
            product = T.alloc_fragment((rows, LANES), "float32")
            total = T.alloc_fragment((rows, LANES), "float32")
            z = T.alloc_fragment((rows, SLICE), "float32")
            mixed = T.alloc_fragment((rows, SLICE), "float32")
            squares = T.alloc_fragment((rows, SLICE), "float32")
            sums = T.alloc_fragment((rows,), "float32")
            square = T.alloc_fragment((rows,), "float32")
            T.pdl_sync()
            T.pdl_trigger()
            for i, j in T.Parallel(rows, streams):
                weights[i, j] = T.if_then_else(bm * rows + i < count, a[bm * rows + i, j], 0.0)
            if grouped:
                T.clear(total)
                T.clear(square)
            T.clear(mixed)
            T.clear(squares)
            T.clear(product)
            for step in T.Pipelined(each * streams, num_stages=stages):
                slice_, source = bs * each + step // streams, step % streams
                at = (slice_ * streams + source) * wide
                T.copy(stream[bm * rows, source * width + slice_ * SLICE], zs)
                T.copy(matrix[at, 0], high)
                T.copy(matrix[at + LANES, 0], middle)
                T.copy(matrix[at + 2 * LANES, 0], low)
                T.gemm(zs, high, product, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.gemm(zs, middle, product, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.gemm(zs, low, product, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(zs, z)
                for i, h in T.Parallel(rows, SLICE):
                    squares[i, h] += z[i, h] * z[i, h]
                    mixed[i, h] += z[i, h] * weights[i, source]
                if source == streams - 1:
                    T.reduce_sum(squares, sums, dim=1)
                    if grouped:
                        for i, c in T.Parallel(rows, LANES):
                            total[i, c] += product[i, c]
                        for i in T.Parallel(rows):
                            square[i] += sums[i]
                    else:
                        keep(partial, product, sums, slice_, bm)
                    T.copy(mixed, x[bm * rows, slice_ * SLICE])
                    T.clear(product)
                    T.clear(mixed)
                    T.clear(squares)
            if grouped:
                keep(partial, total, square, bs, bm)

    return mix_logits


@kernel(
    cases=[
        {"streams": 4, "width": 5120, "grouped": False, "iterations": 20},
        {"streams": 4, "width": 5120, "grouped": True, "iterations": 20},
        {"streams": 4, "width": 256, "grouped": False, "iterations": 20},
    ]
)
def coefficients(*, streams: int, width: int, grouped: bool, iterations: int) -> Any:
    """Partial results of :func:`mix_logits` -> pre and post ``[T, c]`` and the mixing matrix ``[T, c, c]``."""
    count = T.dynamic("count")
    slices, columns = width // SLICE, streams * (streams + 2)
    each = groups_of(slices)
    groups = slices // each
    inner = 1 if grouped else each

    @T.prim_func
    def coefficients(
        partial: T.Tensor((groups * inner, count, LANES), "float32"),
        scale: T.Tensor((columns,), "float32"),
        base: T.Tensor((columns,), "float32"),
        pre: T.Tensor((count, streams), "float32"),
        post: T.Tensor((count, streams), "float32"),
        comb: T.Tensor((count, streams, streams), "float32"),
        eps: T.float32,
        norm_eps: T.float32,
    ):
        with T.Kernel(count, threads=groups * LANES, prelude=STREAMS) as row:
            thread = T.get_thread_binding()
            group, lane = thread // LANES, thread % LANES
            # One buffer: two might be given the same memory, with reads of one still to come.
            sums = T.alloc_shared((groups + 1, LANES), "float32")
            part = T.alloc_local((1,), "float32")
            logits = T.alloc_local((columns,), "float32")
            first = T.alloc_local((2 * streams,), "float32")
            matrix = T.alloc_local((streams * streams,), "float32")
            T.pdl_sync()
            T.pdl_trigger()
            if lane <= columns:
                part[0] = 0.0
                for s in T.unroll(inner):
                    part[0] += partial[group * inner + s, row, lane]
                sums[group, lane] = part[0]
            T.sync_threads()
            if thread <= columns:
                part[0] = 0.0
                for g in T.unroll(groups):
                    part[0] += sums[g, thread]
                sums[groups, thread] = part[0]
            T.sync_threads()
            if thread == 0:
                inverse = T.rsqrt(sums[groups, columns] / (streams * width) + norm_eps)
                for c in T.unroll(columns):
                    logits[c] = sums[groups, c] * inverse * scale[c] + base[c]
                T.call_extern(
                    "handle",
                    f"di_mixing<{streams}>",
                    T.address_of(logits[0]),
                    T.address_of(first[0]),
                    T.address_of(matrix[0]),
                    iterations,
                    eps,
                )
                for c in T.unroll(streams):
                    pre[row, c] = first[c]
                    post[row, c] = first[streams + c]
                for i in T.unroll(streams):
                    for j in T.unroll(streams):
                        comb[row, i, j] = matrix[i * streams + j]

    return coefficients


@kernel(cases=[{"streams": 4, "width": 5120}, {"streams": 4, "width": 256}])
def mix_streams(*, streams: int, width: int, threads: int = 0) -> Any:
    """``X_j <- post_j y + sum_i comb_ij X_i``; a thread has eight positions of every stream."""
    count = T.dynamic("count")
    threads = threads or threads_of(width)

    @T.prim_func
    def mix_streams(
        y: T.Tensor((count, width), "bfloat16"),
        stream: T.Tensor((count, streams, width), "bfloat16"),
        post: T.Tensor((count, streams), "float32"),
        comb: T.Tensor((count, streams, streams), "float32"),
        out: T.Tensor((count, streams, width), "bfloat16"),
    ):
        with T.Kernel(width // (8 * threads), count, threads=threads) as (part, row):
            at = (part * threads + T.get_thread_binding()) * 8
            T.pdl_sync()
            T.pdl_trigger()
            old = T.alloc_local((streams, 8), "bfloat16")
            added = T.alloc_local((8,), "bfloat16")
            mixed = T.alloc_local((8,), "bfloat16")
            total = T.alloc_local((8,), "float32")
            for v in T.vectorized(8):
                added[v] = y[row, at + v]
            for i in T.unroll(streams):
                for v in T.vectorized(8):
                    old[i, v] = stream[row, i, at + v]
            for j in T.unroll(streams):
                for v in T.unroll(8):
                    total[v] = post[row, j] * T.cast(added[v], "float32")
                for i in T.unroll(streams):
                    for v in T.unroll(8):
                        total[v] += comb[row, i, j] * T.cast(old[i, v], "float32")
                for v in T.unroll(8):
                    mixed[v] = T.cast(total[v], "bfloat16")
                for v in T.vectorized(8):
                    out[row, j, at + v] = mixed[v]

    return mix_streams


@kernel(cases=[{"streams": 4, "width": 5120}, {"streams": 4, "width": 256}])
def collapse_streams(*, streams: int, width: int) -> Any:
    """``sum_j a_j X_j``; a thread has eight positions."""
    count = T.dynamic("count")
    threads = threads_of(width)

    @T.prim_func
    def collapse_streams(
        stream: T.Tensor((count, streams, width), "bfloat16"),
        a: T.Tensor((count, streams), "float32"),
        out: T.Tensor((count, width), "bfloat16"),
    ):
        with T.Kernel(width // (8 * threads), count, threads=threads) as (part, row):
            at = (part * threads + T.get_thread_binding()) * 8
            T.pdl_sync()
            T.pdl_trigger()
            old = T.alloc_local((streams, 8), "bfloat16")
            mixed = T.alloc_local((8,), "bfloat16")
            total = T.alloc_local((8,), "float32")
            for i in T.unroll(streams):
                for v in T.vectorized(8):
                    old[i, v] = stream[row, i, at + v]
            for v in T.unroll(8):
                total[v] = 0.0
            for i in T.unroll(streams):
                for v in T.unroll(8):
                    total[v] += a[row, i] * T.cast(old[i, v], "float32")
            for v in T.unroll(8):
                mixed[v] = T.cast(total[v], "bfloat16")
            for v in T.vectorized(8):
                out[row, at + v] = mixed[v]

    return collapse_streams
