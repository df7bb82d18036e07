"""A kernel for the tests of the compiler's wrapper: twice each value."""

import tilelang.language as T

from deepinfer_cuda.jit import kernel


@kernel(cases=[{"width": 256}, {"width": 64, "threads": 32}])
def doubled(*, width: int, threads: int = 128):
    rows = T.dynamic("rows")

    @T.prim_func
    def doubled(x: T.Tensor((rows, width), "float32"), out: T.Tensor((rows, width), "float32")):
        with T.Kernel(rows, threads=threads) as row:
            for i in T.Parallel(width):
                out[row, i] = x[row, i] * 2.0

    return doubled
