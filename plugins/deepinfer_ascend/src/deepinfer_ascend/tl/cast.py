"""Quantisation of bf16 rows in groups (``quant.cast_per_token``). A thread takes a group."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel
from deepinfer_ascend.tl.groups import quantise


@kernel
def cast_rows(*, width: int, fmt: str = "e4m3", group: int = 32, sf: str = "ue8m0", threads: int = 128):
    """bf16 ``[rows, width]`` -> codes uint8 ``[rows, width]`` (half of it for ``e2m1``) and scale bytes uint8
    ``[rows, width / group]``. ``sf`` is ``ue8m0``, or ``e4m3`` for codes of E2M1."""
    rows, groups, data = T.dynamic("rows"), width // group, width if fmt == "e4m3" else width // 2

    @T.prim_func
    def cast_rows(
        x: T.Tensor((rows, width), T.bfloat16),
        codes: T.Tensor((rows, data), T.uint8),
        scales: T.Tensor((rows, groups), T.uint8),
    ):
        with T.Kernel(VECTOR_CORES) as core:
            held = T.alloc_shared((width,), T.bfloat16)
            made = T.alloc_shared((data,), T.uint8)
            bytes_ = T.alloc_shared((groups,), T.uint8)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    T.copy(x[row, 0:width], held)
                    with T.SimtVF(threads=threads):
                        quantise(held, made, bytes_, groups, group, fmt, sf, threads)
                    T.copy(made, codes[row, 0:data])
                    T.copy(bytes_, scales[row, 0:groups])

    return cast_rows
