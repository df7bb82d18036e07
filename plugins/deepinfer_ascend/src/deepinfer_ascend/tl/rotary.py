"""Rotation of adjacent pairs at the end of bf16 rows (``transform.rotary``)."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel


@kernel
def rotary_rows(*, width: int, turned: int, threads: int = 128):
    """The last ``turned`` of ``width`` values of each row, pairs (x0, x1) -> (x0 cos - x1 sin, x0 sin + x1 cos).

    ``x``, ``y`` bf16 ``[rows, width]``; ``angles`` fp32 ``[rows, turned]``, cosines then sines; ``flip`` -1 turns back.
    """
    rows, half, kept = T.dynamic("rows"), turned // 2, width - turned

    @T.prim_func
    def rotary_rows(
        x: T.Tensor((rows, width), T.bfloat16),
        angles: T.Tensor((rows, turned), T.float32),
        y: T.Tensor((rows, width), T.bfloat16),
        flip: T.float32,
    ):
        with T.Kernel(VECTOR_CORES) as core:
            held = T.alloc_shared((width,), T.bfloat16)
            turn = T.alloc_shared((turned,), T.float32)
            made = T.alloc_shared((width,), T.bfloat16)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    T.copy(x[row, 0:width], held)
                    T.copy(angles[row, 0:turned], turn)
                    with T.SimtVF(threads=threads):
                        for i in T.Parallel(kept):  # and no more: the rest is written by other threads
                            made[i] = held[i]
                        for i in T.Parallel(half):
                            first = T.cast(held[kept + 2 * i], T.float32)
                            second = T.cast(held[kept + 2 * i + 1], T.float32)
                            cos, sin = turn[i], turn[half + i] * flip
                            made[kept + 2 * i] = first * cos - second * sin
                            made[kept + 2 * i + 1] = first * sin + second * cos
                    T.copy(made, y[row, 0:width])

    return rotary_rows
