"""Quantisation of bf16 rows to E4M3, UE8M0 scales of 32 values (``quant.cast_per_token``). A thread takes a group."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel
from deepinfer_ascend.tl.codes import FLOOR, GROUP, encoded, exponent_of, inverse_of


@kernel
def cast_rows(*, width: int, threads: int = 128):
    """bf16 ``[rows, width]`` -> codes uint8 ``[rows, width]`` and scale bytes uint8 ``[rows, width / 32]``."""
    rows, groups = T.dynamic("rows"), width // GROUP

    @T.prim_func
    def cast_rows(
        x: T.Tensor((rows, width), T.bfloat16),
        codes: T.Tensor((rows, width), T.uint8),
        scales: T.Tensor((rows, groups), T.uint8),
    ):
        with T.Kernel(VECTOR_CORES) as core:
            held = T.alloc_shared((width,), T.bfloat16)
            made = T.alloc_shared((width,), T.uint8)
            exponents = T.alloc_shared((groups,), T.uint8)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    T.copy(x[row, 0:width], held)
                    with T.SimtVF(threads=threads):
                        for g in T.Parallel(groups):
                            peak = T.alloc_local((1,), T.float32)
                            peak[0] = FLOOR
                            for i in T.serial(GROUP):
                                peak[0] = T.max(peak[0], T.abs(T.cast(held[g * GROUP + i], T.float32)))
                            exponent = exponent_of(peak[0])
                            exponents[g] = T.cast(exponent, T.uint8)
                            for i in T.serial(GROUP):
                                value = T.cast(held[g * GROUP + i], T.float32) * inverse_of(exponent)
                                made[g * GROUP + i] = T.cast(encoded(value), T.uint8)
                    T.copy(made, codes[row, 0:width])
                    T.copy(exponents, scales[row, 0:groups])

    return cast_rows
