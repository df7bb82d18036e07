"""Engram: rows of n-grams, their values, and the gated addition (``engram.*``; ``spec/model.md`` 2.3)."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel
from deepinfer_ascend.tl.codes import GROUP, decoded, scale_of
from deepinfer_ascend.tl.numbers import is_nan
from deepinfer_ascend.tl.reductions import add_up

FLOOR = 1e-6
"""Of the size of a product, before its root."""


@kernel
def hashed_rows(*, grams: int, heads: int, threads: int = 128):
    """Table rows int64 ``[rows, (grams - 1) * heads]`` of ``ids`` int32 ``[rows, grams]``, newest first: the ids times
    their ``multipliers`` int64, joined by exclusive or, mod ``primes`` plus ``offsets`` int64, longer n-grams later."""
    rows, columns = T.dynamic("rows"), (grams - 1) * heads

    @T.prim_func
    def hashed_rows(
        ids: T.Tensor((rows, grams), T.int32),
        multipliers: T.Tensor((grams,), T.int64),
        primes: T.Tensor((columns,), T.int64),
        offsets: T.Tensor((columns,), T.int64),
        out: T.Tensor((rows, columns), T.int64),
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            value = T.alloc_local((1,), T.int64)
            for step in T.serial(T.ceildiv(rows * columns, VECTOR_CORES * threads)):
                at = (step * VECTOR_CORES + core) * threads + lane
                if at < rows * columns:
                    row, column = at // columns, at % columns
                    value[0] = T.cast(ids[row, 0], T.int64) * multipliers[0]
                    for n in T.serial(column // heads + 1):
                        value[0] = value[0] ^ (T.cast(ids[row, n + 1], T.int64) * multipliers[n + 1])
                    out[row, column] = value[0] % primes[column] + offsets[column]

    return hashed_rows


@kernel
def table_values(*, width: int, columns: int, dtype: str = "bfloat16", threads: int = 128):
    """Rows ``places`` int64 ``[rows, columns]`` of a table side by side, ``[rows, columns * width]``: codes E4M3 uint8
    ``[size, width]``, UE8M0 bytes uint8 ``[size, width / 32]``."""
    rows, size = T.dynamic("rows"), T.dynamic("size")

    @T.prim_func
    def table_values(
        places: T.Tensor((rows, columns), T.int64),
        codes: T.Tensor((size, width), T.uint8),
        scales: T.Tensor((size, width // GROUP), T.uint8),
        out: T.Tensor((rows, columns * width), dtype),
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            code = T.alloc_local((1,), T.int32)
            byte = T.alloc_local((1,), T.int32)
            scale = T.alloc_local((1,), T.float32)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    for turn in T.serial(-(-columns * width // threads)):
                        i = turn * threads + lane
                        if i < columns * width:
                            code[0] = T.cast(codes[places[row, i // width], i % width], T.int32)
                            byte[0] = T.cast(scales[places[row, i // width], i % width // GROUP], T.int32)
                            scale[0] = scale_of(byte[0])
                            out[row, i] = T.cast(decoded(code[0]) * scale[0], dtype)

    return table_values


@kernel
def gated_rows(*, width: int, streams: int, dtype: str = "bfloat16", threads: int = 256):
    """``x_j + g_j v``: ``x`` ``[rows, streams, width]``, ``kv`` ``[rows, streams + 1, width]`` of keys, then the value;
    g from the product of stream and key, both normalised, and ``weight`` fp32 ``[streams, width]``. ``open`` uint8
    ``[rows]``: 0 leaves the row as it is."""
    rows, c = T.dynamic("rows"), streams

    @T.prim_func
    def gated_rows(
        x: T.Tensor((rows, c, width), dtype),
        kv: T.Tensor((rows, c + 1, width), dtype),
        weight: T.Tensor((c, width), T.float32),
        open: T.Tensor((rows,), T.uint8),
        out: T.Tensor((rows, c, width), dtype),
        eps: T.float32,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            part = T.alloc_shared((3 * threads,), T.float32)
            sums = T.alloc_local((3,), T.float32)
            stream = T.alloc_local((1,), T.float32)
            key = T.alloc_local((1,), T.float32)
            dot = T.alloc_local((1,), T.float32)
            gate = T.alloc_local((1,), T.float32)
            for step in T.serial(T.ceildiv(rows * c, VECTOR_CORES)):
                work = step * VECTOR_CORES + core
                if work < rows * c:
                    row, j = work // c, work % c
                    for n in T.serial(3):
                        sums[n] = T.float32(0)
                    for turn in T.serial(T.ceildiv(width, threads)):
                        i = turn * threads + lane
                        if i < width:
                            stream[0] = T.cast(x[row, j, i], T.float32)
                            key[0] = T.cast(kv[row, j, i], T.float32)
                            sums[0] = sums[0] + stream[0] * weight[j, i] * key[0]
                            sums[1] = sums[1] + stream[0] * stream[0]
                            sums[2] = sums[2] + key[0] * key[0]
                    add_up(part, sums, lane, threads, 3)
                    dot[0] = part[0] * T.rsqrt(part[threads] / T.float32(width) + eps)
                    dot[0] = dot[0] * T.rsqrt(part[2 * threads] / T.float32(width) + eps) * T.float32(width**-0.5)
                    gate[0] = T.sqrt(T.max(T.abs(dot[0]), T.float32(FLOOR)))
                    if T.reinterpret(dot[0], T.int32) < 0:
                        gate[0] = -gate[0]
                    if is_nan(dot[0]):  # the larger of it and a number is the number
                        gate[0] = dot[0]
                    gate[0] = T.float32(1) / (T.float32(1) + T.exp(-gate[0]))
                    if open[row] == T.uint8(0):
                        gate[0] = T.float32(0)
                    for turn in T.serial(T.ceildiv(width, threads)):
                        i = turn * threads + lane
                        if i < width:
                            stream[0] = T.cast(x[row, j, i], T.float32)
                            out[row, j, i] = T.cast(stream[0] + gate[0] * T.cast(kv[row, c, i], T.float32), dtype)
                    T.sync_threads()

    return gated_rows
