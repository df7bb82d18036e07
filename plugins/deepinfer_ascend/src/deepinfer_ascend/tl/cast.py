"""Quantisation of bf16 rows to E4M3 with UE8M0 scales of 32 values (``quant.cast_per_token``).

By arithmetic on bits: the codes are those of ``spec/kernels.md`` 1.1 on every compiler. A thread takes a group.
"""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel

GROUP = 32
FLOOR, LARGEST = 1e-4, 448.0
BIAS = 120 << 3
"""Exponent of fp32 less that of E4M3, in front of three bits of mantissa."""
SMALLEST_NORMAL = 2.0**-6
MAGIC = 1.5 * 2.0**23
"""Added to a small number, it leaves the number, rounded to even, in the low bits."""


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
                            exponent = ((T.reinterpret(peak[0] / LARGEST, T.int32) - 1) >> 23) + 1
                            exponents[g] = T.cast(exponent, T.uint8)
                            inverse = T.reinterpret((254 - exponent) << 23, T.float32)
                            for i in T.serial(GROUP):
                                value = T.cast(held[g * GROUP + i], T.float32) * inverse
                                size = T.abs(value)
                                bits = T.reinterpret(size, T.int32)
                                normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - BIAS
                                small = T.reinterpret(size * 512.0 + MAGIC, T.int32) & 15
                                code = T.if_then_else(size < SMALLEST_NORMAL, small, T.min(normal, 0x7E))
                                sign = (T.reinterpret(value, T.int32) >> 24) & 0x80
                                made[g * GROUP + i] = T.cast(code | sign, T.uint8)
                    T.copy(made, codes[row, 0:width])
                    T.copy(exponents, scales[row, 0:groups])

    return cast_rows
