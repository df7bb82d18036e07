"""Keys of the indexer: from FP4 codes to the operand of the product, and from products to scores.

The codes of a tile become bf16 in registers (exact: a code times its power of two). A thread then has two keys and
every fourth pair of heads of each row: relu, weight, sum over its heads in ascending order, then over the four threads
that share the keys. A score therefore has the same bits whatever other rows and keys there are, in prefill and decode.

The bf16 operand carries a factor ``2^-BIAS``, so that one multiplication undoes both the offset of the code and the
scale; keys are exact for scales from ``2^-78`` to ``2^49`` (larger ones are taken as that).
"""

from typing import Any

import tilelang
import tilelang.language as T

from deepinfer_cuda.tl.indexer.queries import BF16_BITS, NEAR, NEAR_COPIES, NEXT, NEXT_COPIES
from deepinfer_cuda.tl.parts.numbers import mul2

BIAS = 48
UNSCALED = 2.0 ** (BIAS - 1)
"""Undoes the factor of the keys, and halves what :func:`weigh` sums."""
UNCHECKED = {
    tilelang.PassConfigKey.TL_DISABLE_SAFE_MEMORY_ACCESS: True,
    tilelang.PassConfigKey.TL_DISABLE_BUFFER_INIT_CHECK: True,
}
"""Indices are clamped where they are made; TileLang's own checks would split the vector loads."""


@T.macro
def unpack_keys(words, scales, keys, width: int):
    """Two keys' quarters, ``width / 32`` words each, to the registers of the product."""
    for rr in T.unroll(2):
        for w in T.unroll(width // 32):
            for i in T.unroll(4):
                word = words[rr * (width // 32) + w] >> T.uint32(8 * (i // 2))
                mask = T.Select(i % 2 == 0, T.uint32(NEAR), T.uint32(NEXT))
                copies = T.Select(i % 2 == 0, T.uint32(NEAR_COPIES), T.uint32(NEXT_COPIES))
                bits = ((word & mask) * copies) & T.uint32(BF16_BITS)
                keys[(w * 2 + i // 2) * 4 + (i % 2) * 2 + rr] = mul2(bits, scales[rr])


def key_scale(byte: Any) -> Any:
    """The pair that turns unpacked bits into the key over ``2^BIAS``."""
    return T.min(byte + T.uint32(126 - BIAS), T.uint32(254)) * T.uint32(0x00800080)


@T.macro
def weigh(acc, weights, place, part, rows: int, heads: int):
    """Relu, weights and the sum over this thread's heads: ``part[rr * rows + r]`` for its two keys, twice what it is.

    ``x + |x|`` is twice the relu of ``x``: an addition runs at twice the rate of a maximum.

    :param place: ``place(r, j, b)`` says where the weight of head ``8 j + 2 quad + b`` of a row lies.
    """
    for rr in T.unroll(2):
        for r in T.unroll(rows):
            part[rr * rows + r] = 0.0
    for r in T.unroll(rows):
        for j in T.unroll(heads // 8):
            for b in T.unroll(2):
                w = weights[place(r, j, b)]
                for rr in T.unroll(2):
                    x = acc[(r * (heads // 8) + j) * 4 + rr * 2 + b]
                    part[rr * rows + r] += (x + T.abs(x)) * w


@T.macro
def sum_quads(part, lane, values: int):
    """Sums over the threads of a quad, ``(0 + 1) + (2 + 3)``: thread ``c`` gets those of values ``4 q + c`` in
    ``part[q]``; of two values, threads 0 and 1 (and 2 and 3) get one each."""
    odd = (lane & 1) == 1
    high = (lane & 2) == 2
    if values == 2:
        mine = T.alloc_var("float32")
        mine = T.if_then_else(odd, part[1], part[0])
        mine += T.shfl_xor(T.if_then_else(odd, part[0], part[1]), 1)
        part[0] = mine + T.shfl_xor(mine, 2)
    else:
        for q in T.unroll(values // 4):
            low = T.alloc_var("float32")
            far = T.alloc_var("float32")
            low = T.if_then_else(odd, part[4 * q + 1], part[4 * q])
            low += T.shfl_xor(T.if_then_else(odd, part[4 * q], part[4 * q + 1]), 1)
            far = T.if_then_else(odd, part[4 * q + 3], part[4 * q + 2])
            far += T.shfl_xor(T.if_then_else(odd, part[4 * q + 2], part[4 * q + 3]), 1)
            part[q] = T.if_then_else(high, far, low) + T.shfl_xor(T.if_then_else(high, low, far), 2)


RELEASED = {"heads": 32, "width": 128, "weight": "bfloat16"}
"""What the released model's steps ask for; fp32 weights are for tests and benchmarks."""
