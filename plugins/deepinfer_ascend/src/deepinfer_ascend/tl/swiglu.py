"""SwiGLU of the experts (``moe.swiglu``), before its cast."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel


def below(value, limit):
    """The smaller; NaN stays, which a minimum may drop."""
    return T.if_then_else(value > limit, limit, value)


def above(value, limit):
    return T.if_then_else(value < limit, limit, value)


@kernel
def swiglu_rows(*, inner: int, threads: int = 128):
    """``silu(min(g, limit)) * clip(u, -limit, limit) * weight`` of [g | u] bf16 ``[rows, 2 * inner]``, rounded to bf16
    ``[rows, inner]``; ``weight`` fp32 ``[rows]``."""
    rows = T.dynamic("rows")

    @T.prim_func
    def swiglu_rows(
        x: T.Tensor((rows, 2 * inner), T.bfloat16),
        weight: T.Tensor((rows,), T.float32),
        y: T.Tensor((rows, inner), T.bfloat16),
        limit: T.float32,
    ):
        with T.Kernel(VECTOR_CORES) as core:
            held = T.alloc_shared((2 * inner,), T.bfloat16)
            factor = T.alloc_shared((8,), T.float32)
            made = T.alloc_shared((inner,), T.bfloat16)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    T.copy(x[row, 0 : 2 * inner], held)
                    T.copy(weight[row : row + 1], factor[0:1])
                    with T.SimtVF(threads=threads):
                        for i in T.Parallel(inner):
                            gate = below(T.cast(held[i], T.float32), limit)
                            up = above(below(T.cast(held[inner + i], T.float32), limit), -limit)
                            made[i] = gate / (1.0 + T.exp(-gate)) * up * factor[0]
                    T.copy(made, y[row, 0:inner])

    return swiglu_rows
