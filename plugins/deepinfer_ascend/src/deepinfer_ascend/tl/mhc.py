"""Streams of hyper-connections: copies, the collapse, and what a sublayer adds (``mhc.expand``, ``head``, ``post``)."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel


@kernel
def expand_rows(*, width: int, streams: int, dtype: str = "bfloat16", threads: int = 256):
    """``x`` ``[rows, width]`` -> ``streams`` copies ``[rows, streams, width]``."""
    rows = T.dynamic("rows")

    @T.prim_func
    def expand_rows(x: T.Tensor((rows, width), dtype), out: T.Tensor((rows, streams, width), dtype)):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    for turn in T.serial(T.ceildiv(width, threads)):
                        i = turn * threads + lane
                        if i < width:
                            for j in T.serial(streams):
                                out[row, j, i] = x[row, i]

    return expand_rows


@kernel
def collapse_rows(*, width: int, streams: int, dtype: str = "bfloat16", threads: int = 256):
    """``sum_j a_j x_j``: ``x`` ``[rows, streams, width]``, ``a`` fp32 ``[rows, streams]`` -> ``[rows, width]``."""
    rows = T.dynamic("rows")

    @T.prim_func
    def collapse_rows(
        x: T.Tensor((rows, streams, width), dtype),
        a: T.Tensor((rows, streams), T.float32),
        out: T.Tensor((rows, width), dtype),
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            total = T.alloc_local((1,), T.float32)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    for turn in T.serial(T.ceildiv(width, threads)):
                        i = turn * threads + lane
                        if i < width:
                            total[0] = a[row, 0] * T.cast(x[row, 0, i], T.float32)
                            for j in T.serial(1, streams):
                                total[0] = total[0] + a[row, j] * T.cast(x[row, j, i], T.float32)
                            out[row, i] = T.cast(total[0], dtype)

    return collapse_rows


@kernel
def post_rows(*, width: int, streams: int, dtype: str = "bfloat16", threads: int = 256):
    """``post_j y + sum_i comb_ij x_i`` in fp32, one rounding: ``y`` ``[rows, width]``, ``x`` and ``out`` ``[rows,
    streams, width]``, ``post`` fp32 ``[rows, streams]``, ``comb`` fp32 ``[rows, source, destination]``."""
    rows, c = T.dynamic("rows"), streams

    @T.prim_func
    def post_rows(
        y: T.Tensor((rows, width), dtype),
        x: T.Tensor((rows, c, width), dtype),
        post: T.Tensor((rows, c), T.float32),
        comb: T.Tensor((rows, c, c), T.float32),
        out: T.Tensor((rows, c, width), dtype),
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            held = T.alloc_local((c,), T.float32)
            total = T.alloc_local((1,), T.float32)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    for turn in T.serial(T.ceildiv(width, threads)):
                        i = turn * threads + lane
                        if i < width:
                            for j in T.serial(c):
                                held[j] = T.cast(x[row, j, i], T.float32)
                            for j in T.serial(c):
                                total[0] = post[row, j] * T.cast(y[row, i], T.float32)
                                for source in T.serial(c):
                                    total[0] = total[0] + comb[row, source, j] * held[source]
                                out[row, j, i] = T.cast(total[0], dtype)

    return post_rows
