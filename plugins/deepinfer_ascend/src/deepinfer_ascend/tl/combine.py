"""What experts made of a token, added up (``moe.combine``)."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel


@kernel
def combine_rows(*, width: int, choices: int, biased: bool, dtype: str = "bfloat16", threads: int = 256):
    """``sum_i y[places[row, i]]`` in that order in fp32, then ``bias`` ``[rows, width]`` if there is one, one rounding.
    ``y`` ``[sent, width]``, ``places`` int32 ``[rows, choices]``, -1 for none."""
    rows, sent = T.dynamic("rows"), T.dynamic("sent")

    @T.prim_func
    def combine_rows(
        y: T.Tensor((sent, width), dtype),
        places: T.Tensor((rows, choices), T.int32),
        bias: T.Tensor((rows, width), dtype),
        out: T.Tensor((rows, width), dtype),
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            total = T.alloc_local((1,), T.float32)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    for turn in T.serial(T.ceildiv(width, threads)):
                        i = turn * threads + lane
                        if i < width:
                            total[0] = T.float32(0)
                            for j in T.serial(choices):
                                if places[row, j] >= 0:
                                    total[0] = total[0] + T.cast(y[places[row, j], i], T.float32)
                            if biased:
                                total[0] = total[0] + T.cast(bias[row, i], T.float32)
                            out[row, i] = T.cast(total[0], dtype)

    return combine_rows
