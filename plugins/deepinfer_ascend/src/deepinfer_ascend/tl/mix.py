"""Mixing coefficients of hyper-connections in fp32 (``mhc.pre``): the chip has no fp64, as the plain op takes."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel


@kernel
def mix_coefficients(*, streams: int, iters: int, threads: int = 32):
    """Logits fp32 ``[rows, c * (c + 2)]`` -> pre and post ``[rows, 2 * c]``, comb ``[rows, c * c]`` by source, fp32.

    Softmax over destinations plus ``eps``, divided over sources; ``iters - 1`` more rounds of destinations and sources.
    A thread takes a token, and keeps the order of its sums.
    """
    rows, c = T.dynamic("rows"), streams
    square, wide = c * c, c * (c + 2)

    @T.prim_func
    def mix_coefficients(
        logits: T.Tensor((rows, wide), T.float32),
        both: T.Tensor((rows, 2 * c), T.float32),
        comb: T.Tensor((rows, square), T.float32),
        eps: T.float32,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES * threads)):
                row = (step * VECTOR_CORES + core) * threads + lane
                if row < rows:
                    b = T.alloc_local((square,), T.float32)
                    total = T.alloc_local((1,), T.float32)
                    for i in T.serial(c):
                        both[row, i] = 1.0 / (1.0 + T.exp(-logits[row, i])) + eps
                        both[row, c + i] = 2.0 / (1.0 + T.exp(-logits[row, c + i]))
                    for i in T.serial(c):
                        total[0] = logits[row, 2 * c + i * c]
                        for j in T.serial(c):
                            total[0] = T.max(total[0], logits[row, 2 * c + i * c + j])
                        for j in T.serial(c):
                            b[i * c + j] = T.exp(logits[row, 2 * c + i * c + j] - total[0])
                    for n in T.serial(iters):
                        for i in T.serial(c):
                            total[0] = T.if_then_else(n == 0, 0.0, eps)
                            for j in T.serial(c):
                                total[0] = total[0] + b[i * c + j]
                            for j in T.serial(c):
                                b[i * c + j] = b[i * c + j] / total[0] + T.if_then_else(n == 0, eps, 0.0)
                        for j in T.serial(c):
                            total[0] = eps
                            for i in T.serial(c):
                                total[0] = total[0] + b[i * c + j]
                            for i in T.serial(c):
                                b[i * c + j] = b[i * c + j] / total[0]
                    for i in T.serial(square):
                        comb[row, i] = b[i]

    return mix_coefficients
