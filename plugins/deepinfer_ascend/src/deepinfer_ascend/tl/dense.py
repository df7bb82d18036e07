"""A product of bf16 rows with a bf16 weight (``gemm.dense``) on the cubes: what serves where DeepGEMM is not there."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import CUBE_CORES
from deepinfer_ascend.jit.registry import kernel


@kernel
def dense_rows(*, outputs: int, inputs: int, tile_m: int = 64, tile_n: int = 64, tile_k: int = 64):
    """``y = x @ w.T``: bf16 ``[rows, inputs]`` and ``[outputs, inputs]``, both in ND, to fp32 ``[rows, outputs]``. Sums
    run over ascending pieces of ``tile_k`` inputs."""
    rows, columns = T.dynamic("rows"), outputs // tile_n

    @T.prim_func
    def dense_rows(
        x: T.Tensor((rows, inputs), T.bfloat16),
        w: T.Tensor((outputs, inputs), T.bfloat16),
        y: T.Tensor((rows, outputs), T.float32),
    ):
        with T.Kernel(CUBE_CORES) as core:
            left = T.alloc_l1((tile_m, tile_k), T.bfloat16)
            right = T.alloc_l1((tile_n, tile_k), T.bfloat16)
            total = T.alloc_l0c((tile_m, tile_n), T.float32)
            tiles = T.ceildiv(rows, tile_m) * columns
            for step in T.serial(T.ceildiv(tiles, CUBE_CORES)):
                tile = step * CUBE_CORES + core
                if tile < tiles:
                    m, n = tile // columns * tile_m, tile % columns * tile_n
                    for k in T.serial(inputs // tile_k):
                        T.copy(x[m, k * tile_k], left)
                        T.copy(w[n, k * tile_k], right)
                        T.gemm(left, right, total, transpose_B=True, clear_accum=(k == 0))
                    T.copy(total, y[m : m + tile_m, n : n + tile_n])

    return dense_rows
