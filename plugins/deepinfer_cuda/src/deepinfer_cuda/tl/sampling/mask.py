"""-inf for the tokens that a grammar forbids, in place: what is allowed is neither read nor written."""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel

WORD = 32


@kernel(cases=[{"width": 1528}, {"width": 129280}])
def mask(*, width: int, threads: int = 256, words: int = 64) -> Any:
    """A block for ``words`` words of one bitmask: a warp writes the 32 tokens of a word together."""
    masks, rows, requests, stride = T.dynamic("masks"), T.dynamic("rows"), T.dynamic("requests"), T.dynamic("stride")
    total = -(-width // WORD)
    turns = words * WORD // threads

    @T.prim_func
    def mask(
        logits: T.StridedTensor((rows, width), (stride, 1), "float32"),
        bits: T.Tensor((masks, total), "int32"),
        reqs: T.Tensor((masks,), "int32"),
        first_row: T.Tensor((requests,), "int32"),
        step: T.int32,
    ):
        with T.Kernel(T.ceildiv(total, words), masks, threads=threads) as (part, item):
            thread = T.get_thread_binding()
            request = reqs[item]
            row = first_row[request] + step
            if row < first_row[request + 1]:
                for i in T.unroll(turns):
                    word = part * words + i * (threads // WORD) + thread // WORD
                    token = word * WORD + thread % WORD
                    if (token < width) and (((bits[item, word] >> (thread % WORD)) & 1) == 0):
                        logits[row, token] = -T.infinity("float32")

    return mask
