"""The canonical draw from rows of log-probabilities (``sample.draw``; ``spec/sampling.md`` 2.5)."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel
from deepinfer_ascend.tl.hashing import key, portion
from deepinfer_ascend.tl.numbers import is_nan

LANES = 32
"""Threads that read a stretch of a row together, adjacent tokens at once."""


@kernel
def draw_rows(*, width: int, threads: int = 512):
    """fp32 ``[rows, width]`` -> a token each, int32 ``[rows]``. ``seeds``, ``positions`` int64 ``[rows]``;
    ``kind`` is the case of the key.

    Weights are ``floor(p * 2^31)``, so their sums do not depend on an order. Sums of stretches first, then the stretch
    that the number falls into is read again. A row without weight gives its most probable token, NaN counts as nothing.
    """
    rows, groups = T.dynamic("rows"), threads // LANES
    stretch = -(-width // (groups * LANES)) * LANES
    each = -(-stretch // threads)

    def probability(value):
        return T.if_then_else(is_nan(value), T.float32(0), T.exp(value))

    def weight(value):
        return T.cast(probability(value) * T.float32(2.0**31), T.int64)

    @T.prim_func
    def draw_rows(
        logprobs: T.Tensor((rows, width), T.float32),
        seeds: T.Tensor((rows,), T.int64),
        positions: T.Tensor((rows,), T.int64),
        tokens: T.Tensor((rows,), T.int32),
        kind: T.int32,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            part = T.alloc_shared((threads,), T.int64)
            sums = T.alloc_shared((groups,), T.int64)
            tops = T.alloc_shared((threads,), T.float32)
            places = T.alloc_shared((threads,), T.int32)
            own = T.alloc_local((1,), T.int64)
            before = T.alloc_local((1,), T.int64)
            above = T.alloc_local((1,), T.int64)
            chosen = T.alloc_local((1,), T.int32)
            top = T.alloc_local((1,), T.float32)
            hashed = T.alloc_local((1,), T.uint64)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    own[0] = T.int64(0)
                    top[0] = T.float32(-1)
                    chosen[0] = 0
                    for i in T.serial(stretch // LANES):
                        token = lane // LANES * stretch + i * LANES + lane % LANES
                        if token < width:
                            own[0] = own[0] + weight(logprobs[row, token])
                            if probability(logprobs[row, token]) > top[0]:
                                top[0] = probability(logprobs[row, token])
                                chosen[0] = token
                    part[lane] = own[0]
                    tops[lane] = top[0]
                    places[lane] = chosen[0]
                    T.sync_threads()
                    if lane < groups:
                        own[0] = T.int64(0)
                        for i in T.serial(LANES):
                            own[0] = own[0] + part[lane * LANES + i]
                        sums[lane] = own[0]
                    T.sync_threads()
                    own[0] = T.int64(0)
                    for g in T.serial(groups):
                        own[0] = own[0] + sums[g]
                    if own[0] == T.int64(0):
                        if lane == 0:
                            for i in T.serial(threads):
                                if tops[i] > top[0] or (tops[i] == top[0] and places[i] < chosen[0]):
                                    top[0] = tops[i]
                                    chosen[0] = places[i]
                            tokens[row] = chosen[0]
                        T.sync_threads()
                    else:
                        key(hashed, seeds[row], positions[row], kind)
                        target = portion(hashed[0], own[0])
                        # The stretch that holds the number, and the weight before it.
                        before[0] = T.int64(0)
                        chosen[0] = 0
                        while chosen[0] < groups - 1 and before[0] + sums[chosen[0]] <= target:
                            before[0] = before[0] + sums[chosen[0]]
                            chosen[0] = chosen[0] + 1
                        first = chosen[0] * stretch + lane * each
                        own[0] = T.int64(0)
                        for i in T.serial(each):
                            if lane * each + i < stretch and first + i < width:
                                own[0] = own[0] + weight(logprobs[row, first + i])
                        part[lane] = own[0]
                        T.sync_threads()
                        for i in T.serial(lane):
                            before[0] = before[0] + part[i]
                        if before[0] <= target and target < before[0] + own[0]:  # of all threads, one
                            # Its first token whose sum is above. The passes would take the condition itself for known.
                            above[0] = before[0]
                            chosen[0] = 0
                            for i in T.serial(each):
                                if lane * each + i < stretch and first + i < width:
                                    above[0] = above[0] + weight(logprobs[row, first + i])
                                    if above[0] <= target:
                                        chosen[0] = i + 1
                            tokens[row] = first + chosen[0]
                        T.sync_threads()

    return draw_rows
