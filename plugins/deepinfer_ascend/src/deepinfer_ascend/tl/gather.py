"""Rows by number (``meta.gather_rows``)."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel


@kernel
def gather_rows(*, width: int, dtype: str = "bfloat16", threads: int = 128):
    """``out[i] = x[idx[i]]``, zeros where ``idx[i]`` int32 names no row of ``x`` ``[count, width]``."""
    rows, count = T.dynamic("rows"), T.dynamic("count")

    @T.prim_func
    def gather_rows(
        x: T.Tensor((count, width), dtype), idx: T.Tensor((rows,), T.int32), out: T.Tensor((rows, width), dtype)
    ):
        with T.Kernel(VECTOR_CORES) as core:
            held = T.alloc_shared((width,), dtype)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    if idx[row] >= 0 and idx[row] < count:
                        T.copy(x[idx[row], 0:width], held)
                    else:
                        with T.SimtVF(threads=threads):
                            for i in T.Parallel(width):
                                held[i] = T.cast(0, dtype)
                    T.copy(held, out[row, 0:width])

    return gather_rows
