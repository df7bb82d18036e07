"""Entries of caches in format V41: E4M3 codes, then UE8M0 bytes, one entry a token (``cache.store``, and reading)."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel
from deepinfer_ascend.tl.codes import FLOOR, GROUP, decoded, encoded, exponent_of, inverse_of, scale_of


@kernel
def store_v41(*, width: int, threads: int = 128):
    """bf16 ``[rows, width]`` into ``cache``, bytes from its first entry on, at ``slots`` int32 ``[rows]``; -1: nowhere.
    A unit has ``page`` entries and begins ``stride`` bytes behind the one before."""
    rows, size, groups = T.dynamic("rows"), T.dynamic("size"), width // GROUP

    @T.prim_func
    def store_v41(
        x: T.Tensor((rows, width), T.bfloat16),
        slots: T.Tensor((rows,), T.int32),
        cache: T.Tensor((size,), T.uint8),
        page: T.int32,
        stride: T.int64,
    ):
        with T.Kernel(VECTOR_CORES) as core:
            held = T.alloc_shared((width,), T.bfloat16)
            made = T.alloc_shared((width,), T.uint8)
            exponents = T.alloc_shared((groups,), T.uint8)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    slot = slots[row]
                    if slot >= 0:
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
                        at = T.cast(slot // page, T.int64) * stride + T.cast(slot % page * (width + groups), T.int64)
                        T.copy(made, cache[at : at + width])
                        T.copy(exponents, cache[at + width : at + width + groups])

    return store_v41


@kernel
def load_v41(*, width: int, threads: int = 128):
    """bf16 ``[rows, width]`` of the entries at ``slots`` int32 ``[rows]``; zeros where a slot is -1."""
    rows, size, groups = T.dynamic("rows"), T.dynamic("size"), width // GROUP

    @T.prim_func
    def load_v41(
        cache: T.Tensor((size,), T.uint8),
        slots: T.Tensor((rows,), T.int32),
        y: T.Tensor((rows, width), T.bfloat16),
        page: T.int32,
        stride: T.int64,
    ):
        with T.Kernel(VECTOR_CORES) as core:
            held = T.alloc_shared((width,), T.uint8)
            exponents = T.alloc_shared((groups,), T.uint8)
            made = T.alloc_shared((width,), T.bfloat16)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    slot = slots[row]
                    if slot >= 0:
                        at = T.cast(slot // page, T.int64) * stride + T.cast(slot % page * (width + groups), T.int64)
                        T.copy(cache[at : at + width], held)
                        T.copy(cache[at + width : at + width + groups], exponents)
                        with T.SimtVF(threads=threads):
                            for i in T.Parallel(width):
                                scale = scale_of(T.cast(exponents[i // GROUP], T.int32))
                                made[i] = T.cast(decoded(T.cast(held[i], T.int32)) * scale, T.bfloat16)
                    else:
                        with T.SimtVF(threads=threads):
                            for i in T.Parallel(width):
                                made[i] = T.cast(0, T.bfloat16)
                    T.copy(made, y[row, 0:width])

    return load_v41
