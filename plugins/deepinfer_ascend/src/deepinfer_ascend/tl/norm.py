"""RMS normalisation of bf16 rows (``norm.rms``)."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel


@kernel
def rms_rows(*, width: int, threads: int = 128):
    """``y = x * rsqrt(mean(x^2) + eps) * w``: ``x``, ``y`` bf16 ``[rows, width]``, ``w`` fp32 ``[width]``."""
    rows = T.dynamic("rows")

    @T.prim_func
    def rms_rows(
        x: T.Tensor((rows, width), T.bfloat16),
        w: T.Tensor((width,), T.float32),
        y: T.Tensor((rows, width), T.bfloat16),
        eps: T.float32,
    ):
        with T.Kernel(VECTOR_CORES) as core:
            held = T.alloc_shared((width,), T.bfloat16)
            weight = T.alloc_shared((width,), T.float32)
            made = T.alloc_shared((width,), T.bfloat16)
            T.copy(w, weight)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    T.copy(x[row, 0:width], held)
                    with T.SimtVF(threads=threads):
                        square = T.alloc_fragment((1, width), T.float32)
                        total = T.alloc_fragment((1,), T.float32)
                        for i in T.Parallel(width):
                            square[0, i] = T.cast(held[i], T.float32) * T.cast(held[i], T.float32)
                        T.reduce_sum(square, total, dim=1)
                        for i in T.Parallel(width):
                            made[i] = T.cast(held[i], T.float32) * T.rsqrt(total[0] / width + eps) * weight[i]
                    T.copy(made, y[row, 0:width])

    return rms_rows
