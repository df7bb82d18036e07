"""Index rows of a decode step (``meta.window_index_decode``, ``meta.compressed_index`` without a table)."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel


@kernel
def ring_indices(*, width: int, threads: int = 128):
    """(slot, length) int32 ``[rows, 2]`` -> ``width`` slots from the slot on, wrapping inside its ring of ``ring``
    entries; -1 from the length on."""
    rows = T.dynamic("rows")

    @T.prim_func
    def ring_indices(start_length: T.Tensor((rows, 2), T.int32), out: T.Tensor((rows, width), T.int32), ring: T.int32):
        with T.Kernel(VECTOR_CORES) as core:
            pair = T.alloc_shared((8,), T.int32)
            line = T.alloc_shared((width,), T.int32)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    T.copy(start_length[row, 0:2], pair[0:2])
                    with T.SimtVF(threads=threads):
                        for i in T.Parallel(width):
                            at = pair[0] % ring
                            line[i] = T.if_then_else(i < pair[1], pair[0] - at + (at + i) % ring, -1)
                    T.copy(line, out[row, 0:width])

    return ring_indices


@kernel
def run_indices(*, width: int, threads: int = 128):
    """(offset, length) int32 ``[rows, 2]`` -> offset + base, offset + base + 1, ...; -1 from the length on."""
    rows = T.dynamic("rows")

    @T.prim_func
    def run_indices(start_length: T.Tensor((rows, 2), T.int32), out: T.Tensor((rows, width), T.int32), base: T.int32):
        with T.Kernel(VECTOR_CORES) as core:
            pair = T.alloc_shared((8,), T.int32)
            line = T.alloc_shared((width,), T.int32)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    T.copy(start_length[row, 0:2], pair[0:2])
                    with T.SimtVF(threads=threads):
                        for i in T.Parallel(width):
                            line[i] = T.if_then_else(i < pair[1], base + pair[0] + i, -1)
                    T.copy(line, out[row, 0:width])

    return run_indices
