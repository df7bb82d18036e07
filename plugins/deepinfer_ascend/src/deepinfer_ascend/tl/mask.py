"""Logits of tokens that a grammar forbids (``sample.mask``)."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel

MOST_WORDS = 128
"""Words of the mask that a core holds at once, with their 32 columns each."""


@kernel
def mask_rows(*, width: int, threads: int = 256):
    """-inf in ``logits`` fp32 ``[rows, width]``, in place, where a bit of ``bitmask`` int32 ``[count, width / 32]`` is
    0; ``places`` int32 ``[count]``: the row of logits that a row of the mask is for, -1: none."""
    rows, count, words = T.dynamic("rows"), T.dynamic("count"), width // 32
    tile = 32 * max(n for n in range(1, min(words, MOST_WORDS) + 1) if words % n == 0)
    parts = width // tile

    @T.prim_func
    def mask_rows(
        logits: T.Tensor((rows, width), T.float32),
        bitmask: T.Tensor((count, words), T.int32),
        places: T.Tensor((count,), T.int32),
    ):
        with T.Kernel(VECTOR_CORES) as core:
            held = T.alloc_shared((tile,), T.float32)
            bits = T.alloc_shared((tile // 32,), T.int32)
            for step in T.serial(T.ceildiv(count * parts, VECTOR_CORES)):
                part = step * VECTOR_CORES + core
                if part < count * parts:
                    row, first = part // parts, part % parts * tile
                    place = places[row]
                    if place >= 0:
                        T.copy(logits[place, first : first + tile], held)
                        T.copy(bitmask[row, first // 32 : first // 32 + tile // 32], bits)
                        with T.SimtVF(threads=threads):
                            for i in T.Parallel(tile):
                                if ((bits[i // 32] >> (i % 32)) & 1) == 0:
                                    held[i] = -T.infinity(T.float32)
                        T.copy(held, logits[place, first : first + tile])

    return mask_rows
