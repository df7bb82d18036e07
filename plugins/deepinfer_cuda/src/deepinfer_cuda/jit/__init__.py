"""Compile TileLang kernels once: a decorator for factories, a cache in memory, a cache on disk, and warm-up.

::

    @kernel(cases=[{"width": 256}, {"width": 5120}])
    def rms_rows(*, width: int, block: int = 128):
        rows = T.dynamic("rows")

        @T.prim_func
        def rms_rows(x: T.Tensor((rows, width), "bfloat16"), ...):
            ...

        return rms_rows

    rms_rows(width=5120)(x, out)                  # compiles, or loads, at the first call; launches
    rms_rows.lower("sm_100a", width=5120)         # the CUDA source, without a GPU
    rms_rows.build("sm_100a", width=5120)         # into the cache on disk, without a GPU
"""

from deepinfer_cuda.jit.factory import Factory, kernel

__all__ = ["Factory", "kernel"]
