"""The largest visible score of each block of a row (``spec/kernels.md`` 2.4): one thread reads it, once."""

import tilelang
import tilelang.language as T

from deepinfer_cuda.jit import kernel

THREADS, EACH = 128, 4
"""Threads of a block, and blocks of scores a thread, so that several loads are on their way."""
LARGEST_BF16 = 3.3895313892515355e38
UNCHECKED = {tilelang.PassConfigKey.TL_DISABLE_SAFE_MEMORY_ACCESS: True}


@kernel(cases=[{"block": 8}, {"block": 8, "vector": False}, {"block": 4}], pass_configs=UNCHECKED)
def block_maxima(*, block: int, vector: bool = True):
    """Maxima at most the largest bf16, NaN where a block has one; +inf for the block of the newest visible score.

    Arguments: scores fp32 as they lie in memory, from row to row in units of one value or of four (``vector``: then
    rows begin at multiples of 16 bytes), columns of a row, visible columns of each row int32 ``[T]``, out fp32
    ``[T, blocks]``, int32 ``[T]`` blocks that have a visible column.
    """
    total, blocks, elements = T.dynamic("total"), T.dynamic("blocks"), T.dynamic("elements", "int64")
    unit = 4 if vector else 1

    @T.prim_func
    def block_maxima(
        scores: T.Tensor((elements,), "float32"),
        stride: T.int32,
        n: T.int32,
        valid: T.Tensor((total,), "int32"),
        out: T.Tensor((total, blocks), "float32"),
        counts: T.Tensor((total,), "int32"),
    ):
        with T.Kernel(T.ceildiv(blocks, THREADS * EACH), total, threads=THREADS) as (part, row):
            tx = T.get_thread_binding()
            values = T.alloc_local((EACH * block,), "float32")
            best = T.alloc_var("float32")
            first = T.cast(row, "int64") * stride * unit
            stop = T.min(valid[row], n)
            count = (valid[row] + (block - 1)) // block
            if part == 0 and tx == 0:
                counts[row] = count
            for u in T.unroll(EACH):
                at = ((part * EACH + u) * THREADS + tx) * block
                if vector and at + block <= stop:
                    for g in T.unroll(block // 4):
                        for i in T.vectorized(4):
                            values[u * block + g * 4 + i] = scores[first + at + g * 4 + i]
                else:
                    for i in T.unroll(block):
                        values[u * block + i] = T.if_then_else(
                            at + i < stop, scores[first + T.min(at + i, n - 1)], -T.infinity("float32")
                        )
            for u in T.unroll(EACH):
                which = (part * EACH + u) * THREADS + tx
                if which < blocks:
                    best = values[u * block]
                    for i in T.unroll(1, block):
                        best = T.if_then_else(values[u * block + i] <= best, best, values[u * block + i])
                    for i in T.unroll(block):  # the maximum may have passed over a NaN
                        value = values[u * block + i]
                        best = T.if_then_else(T.isnan(value), value, best)
                    best = T.if_then_else(best > T.float32(LARGEST_BF16), T.float32(LARGEST_BF16), best)
                    out[row, which] = T.if_then_else(which == count - 1, T.infinity("float32"), best)

    return block_maxima
