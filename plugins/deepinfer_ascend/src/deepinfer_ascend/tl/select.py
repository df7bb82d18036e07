"""Selection among scores of the indexer (``index.*``; ``spec/kernels.md`` 2.4): the best, by block, and back."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel
from deepinfer_ascend.tl.numbers import is_nan, rank_of
from deepinfer_ascend.tl.reductions import add_up

DIGITS = 16
"""Of two bits, of a value's rank."""
LARGEST_BF16 = 3.3895313892515355e38


@kernel
def topk_rows(*, dtype: str = "float32", threads: int = 256):
    """The best ``min(k, end)`` columns of ``scores`` ``[rows, columns]``, in ascending order, plus ``offset``; then
    -1: ``out`` int32 ``[rows, k]``, and their scores ``values`` fp32 ``[rows, k]``, -inf behind them.

    ``end``, ``offset`` int32 ``[rows]``. A column of -inf or NaN is never chosen; of equal scores at the cut the lower
    columns are. The cut is found digit by digit, as in ``tl/filters.py``.
    """
    rows, columns, k = T.dynamic("rows"), T.dynamic("columns"), T.dynamic("k")

    @T.prim_func
    def topk_rows(
        scores: T.Tensor((rows, columns), dtype),
        end: T.Tensor((rows,), T.int32),
        offset: T.Tensor((rows,), T.int32),
        out: T.Tensor((rows, k), T.int32),
        values: T.Tensor((rows, k), T.float32),
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            part = T.alloc_shared((3 * threads,), T.int64)
            sums = T.alloc_local((3,), T.int64)
            rank = T.alloc_local((1,), T.int64)
            value = T.alloc_local((1,), T.float32)
            cut = T.alloc_local((1,), T.int64)
            digit_found = T.alloc_local((1,), T.int64)
            left = T.alloc_local((1,), T.int64)
            place = T.alloc_local((1,), T.int64)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    visible = T.min(end[row], columns)
                    each = T.ceildiv(T.max(visible, 0), threads)
                    cut[0] = T.int64(0)
                    for digit in T.serial(DIGITS):
                        one = T.int64(1) << T.cast(2 * (DIGITS - 1 - digit), T.int64)
                        for j in T.serial(3):
                            sums[j] = T.int64(0)
                        for i in T.serial(each):
                            if i * threads + lane < visible:
                                value[0] = T.cast(scores[row, i * threads + lane], T.float32)
                                if value[0] != -T.infinity(T.float32) and not is_nan(value[0]):
                                    rank[0] = rank_of(value[0])
                                    for j in T.serial(3):
                                        if rank[0] >= cut[0] + T.cast(j + 1, T.int64) * one:
                                            sums[j] = sums[j] + T.int64(1)
                        add_up(part, sums, lane, threads, 3)
                        digit_found[0] = T.int64(0)
                        for j in T.serial(3):
                            if part[j * threads] >= T.cast(k, T.int64):
                                digit_found[0] = T.cast(j + 1, T.int64)
                        cut[0] = cut[0] + digit_found[0] * one
                        T.sync_threads()
                    # A thread takes adjacent columns now: what lies above the cut, and at it.
                    sums[0] = T.int64(0)
                    sums[1] = T.int64(0)
                    for i in T.serial(each):
                        if lane * each + i < visible:
                            value[0] = T.cast(scores[row, lane * each + i], T.float32)
                            if value[0] != -T.infinity(T.float32) and not is_nan(value[0]):
                                rank[0] = rank_of(value[0])
                                if rank[0] > cut[0]:
                                    sums[0] = sums[0] + T.int64(1)
                                elif rank[0] == cut[0]:
                                    sums[1] = sums[1] + T.int64(1)
                    part[lane] = sums[0]
                    part[threads + lane] = sums[1]
                    T.sync_threads()
                    left[0] = T.cast(k, T.int64)
                    for i in T.serial(threads):
                        left[0] = left[0] - part[i]
                    sums[2] = left[0]
                    place[0] = T.int64(0)
                    for i in T.serial(lane):
                        place[0] = place[0] + part[i] + T.min(part[threads + i], left[0])
                        left[0] = left[0] - T.min(part[threads + i], left[0])
                    for i in T.serial(each):
                        if lane * each + i < visible:
                            value[0] = T.cast(scores[row, lane * each + i], T.float32)
                            if value[0] != -T.infinity(T.float32) and not is_nan(value[0]):
                                rank[0] = rank_of(value[0])
                                if rank[0] > cut[0] or (rank[0] == cut[0] and left[0] > T.int64(0)):
                                    out[row, T.cast(place[0], T.int32)] = lane * each + i + offset[row]
                                    values[row, T.cast(place[0], T.int32)] = value[0]
                                    place[0] = place[0] + T.int64(1)
                                    if rank[0] == cut[0]:
                                        left[0] = left[0] - T.int64(1)
                    place[0] = T.int64(0)
                    for i in T.serial(threads):
                        place[0] = place[0] + part[i] + T.min(part[threads + i], sums[2])
                        sums[2] = sums[2] - T.min(part[threads + i], sums[2])
                    for turn in T.serial(T.ceildiv(k, threads)):
                        at = turn * threads + lane
                        if at < k and T.cast(at, T.int64) >= place[0]:
                            out[row, at] = -1
                            values[row, at] = -T.infinity(T.float32)
                    T.sync_threads()

    return topk_rows


@kernel
def block_max_rows(*, block: int, dtype: str = "float32", threads: int = 128):
    """The largest visible score of each block of columns, fp32 ``[rows, blocks]``, at most the largest bf16; +inf for
    the block of the last visible one. ``valid`` int32 ``[rows]``: columns to see; ``counts``: blocks with some."""
    rows, columns, blocks = T.dynamic("rows"), T.dynamic("columns"), T.dynamic("blocks")

    @T.prim_func
    def block_max_rows(
        scores: T.Tensor((rows, columns), dtype),
        valid: T.Tensor((rows,), T.int32),
        best: T.Tensor((rows, blocks), T.float32),
        counts: T.Tensor((rows,), T.int32),
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            value = T.alloc_local((1,), T.float32)
            peak = T.alloc_local((1,), T.float32)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    for turn in T.serial(T.ceildiv(blocks, threads)):
                        b = turn * threads + lane
                        if b < blocks:
                            peak[0] = -T.infinity(T.float32)
                            for i in T.serial(block):
                                if b * block + i < columns and b * block + i < valid[row]:
                                    value[0] = T.cast(scores[row, b * block + i], T.float32)
                                    if value[0] > peak[0] or is_nan(value[0]):
                                        peak[0] = value[0]
                            if peak[0] > T.float32(LARGEST_BF16):
                                peak[0] = T.float32(LARGEST_BF16)
                            if b == (valid[row] + block - 1) // block - 1:
                                peak[0] = T.infinity(T.float32)
                            best[row, b] = peak[0]
                    if lane == 0:
                        counts[row] = (valid[row] + block - 1) // block

    return block_max_rows


@kernel
def restored_rows(*, block: int, threads: int = 128):
    """Positions inside candidate blocks -> positions, in place: ``compact`` int32 ``[rows, k]``, ``candidates`` int32
    ``[rows, count]``, plus ``offset`` int32 ``[rows]``; -1 where there is no such candidate."""
    rows, k, count = T.dynamic("rows"), T.dynamic("k"), T.dynamic("count")

    @T.prim_func
    def restored_rows(
        compact: T.Tensor((rows, k), T.int32),
        candidates: T.Tensor((rows, count), T.int32),
        offset: T.Tensor((rows,), T.int32),
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            at = T.alloc_local((1,), T.int32)
            chosen = T.alloc_local((1,), T.int32)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    for turn in T.serial(T.ceildiv(k, threads)):
                        i = turn * threads + lane
                        if i < k:
                            at[0] = compact[row, i]
                            chosen[0] = -1
                            if at[0] >= 0 and at[0] < count * block:
                                chosen[0] = candidates[row, at[0] // block]
                            if chosen[0] < 0:
                                compact[row, i] = -1
                            else:
                                compact[row, i] = chosen[0] * block + at[0] % block + offset[row]

    return restored_rows
