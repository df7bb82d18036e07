"""Index rows of prefill, and slots through block tables (``meta.*``; ``spec/kernels.md`` 2.5). Widths are arguments."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel


@kernel
def window_rows(*, threads: int = 128):
    """``pivots`` int32 ``[rows, 4]`` = (a, n_a, b, n_b) -> a, a + 1, .. b, b + 1, .. -1, ``[rows, width]``."""
    rows, width = T.dynamic("rows"), T.dynamic("width")

    @T.prim_func
    def window_rows(pivots: T.Tensor((rows, 4), T.int32), out: T.Tensor((rows, width), T.int32)):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    for turn in T.serial(T.ceildiv(width, threads)):
                        k = turn * threads + lane
                        if k < width:
                            if k < pivots[row, 1]:
                                out[row, k] = pivots[row, 0] + k
                            elif k < pivots[row, 1] + pivots[row, 3]:
                                out[row, k] = pivots[row, 2] + k - pivots[row, 1]
                            else:
                                out[row, k] = -1

    return window_rows


@kernel
def table_rows(*, threads: int = 128):
    """(offset, length) int32 ``[rows, 2]`` in the space of a flat ``table`` int32 ``[size]`` of ``per_block`` entries a
    block -> slots of the entries from the offset on, plus ``base``; -1 from the length on: ``[rows, width]``."""
    rows, width, size = T.dynamic("rows"), T.dynamic("width"), T.dynamic("size")

    @T.prim_func
    def table_rows(
        start_length: T.Tensor((rows, 2), T.int32),
        table: T.Tensor((size,), T.int32),
        out: T.Tensor((rows, width), T.int32),
        per_block: T.int32,
        base: T.int32,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    for turn in T.serial(T.ceildiv(width, threads)):
                        k = turn * threads + lane
                        if k < width:
                            if k < start_length[row, 1]:
                                entry = start_length[row, 0] + k
                                block = T.min(entry // per_block, size - 1)
                                out[row, k] = table[block] * per_block + entry % per_block + base
                            else:
                                out[row, k] = -1

    return table_rows


@kernel
def joined_rows(*, threads: int = 128):
    """``[window | compressed + offset]`` int32 ``[rows, left + right]``; what is negative stays."""
    rows, left, right = T.dynamic("rows"), T.dynamic("left"), T.dynamic("right")

    @T.prim_func
    def joined_rows(
        window: T.Tensor((rows, left), T.int32),
        compressed: T.Tensor((rows, right), T.int32),
        out: T.Tensor((rows, left + right), T.int32),
        offset: T.int32,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    for turn in T.serial(T.ceildiv(left + right, threads)):
                        k = turn * threads + lane
                        if k < left:
                            out[row, k] = window[row, k]
                        elif k < left + right:
                            entry = compressed[row, k - left]
                            out[row, k] = T.if_then_else(entry < 0, entry, entry + offset)

    return joined_rows


@kernel
def slot_rows(*, threads: int = 128):
    """Logical ``entries`` int32 ``[rows, width]`` -> slots by ``table`` int32 ``[rows, blocks]`` of ``per_block``
    entries a block; -1 for what is negative, or not below ``context`` int32 ``[rows]``."""
    rows, width, blocks = T.dynamic("rows"), T.dynamic("width"), T.dynamic("blocks")

    @T.prim_func
    def slot_rows(
        entries: T.Tensor((rows, width), T.int32),
        table: T.Tensor((rows, blocks), T.int32),
        context: T.Tensor((rows,), T.int32),
        out: T.Tensor((rows, width), T.int32),
        per_block: T.int32,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    for turn in T.serial(T.ceildiv(width, threads)):
                        k = turn * threads + lane
                        if k < width:
                            entry = entries[row, k]
                            if entry >= 0 and entry < context[row]:
                                out[row, k] = table[row, entry // per_block] * per_block + entry % per_block
                            else:
                                out[row, k] = -1

    return slot_rows


@kernel
def picked_rows(*, threads: int = 128):
    """``out[i] = x[idx[i]]`` of words of 4 bytes, zeros where ``idx[i]`` int32 is none of ``x`` ``[count, width]``."""
    rows, count, width = T.dynamic("rows"), T.dynamic("count"), T.dynamic("width")

    @T.prim_func
    def picked_rows(
        x: T.Tensor((count, width), T.int32), idx: T.Tensor((rows,), T.int32), out: T.Tensor((rows, width), T.int32)
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    for turn in T.serial(T.ceildiv(width, threads)):
                        k = turn * threads + lane
                        if k < width:
                            if idx[row] >= 0 and idx[row] < count:
                                out[row, k] = x[idx[row], k]
                            else:
                                out[row, k] = 0

    return picked_rows
