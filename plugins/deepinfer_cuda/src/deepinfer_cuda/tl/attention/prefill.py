"""Prefill attention: the launch and its arguments. ``wide_prefill.py`` and ``narrow.py`` have what a block does."""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.attention.hopper import hopper_prefill
from deepinfer_cuda.tl.attention.narrow import narrow_prefill
from deepinfer_cuda.tl.attention.softmax import TILE, on_hopper
from deepinfer_cuda.tl.attention.source import GATHERED, NARROW, WIDE
from deepinfer_cuda.tl.attention.wide_prefill import wide_prefill
from deepinfer_cuda.tl.attention.workspace import WARPGROUP, WIDTH


@kernel(cases=[{"width": WIDTH}, {"width": 64}])
def sparse_prefill(*, width: int, halves: bool = True) -> Any:
    """Keys are rows of a bf16 buffer. ``blocks`` blocks share the rows of a group of heads, as many where heads are
    narrow.

    :param halves: Halves of a tile of wide keys are released one by one.
    """
    rows, heads, q_stride, keys_count, k, lengths_size, sink_size = (
        T.dynamic(n) for n in ("rows", "heads", "q_stride", "keys_count", "k", "lengths_size", "sink_size")
    )
    wide = width == WIDTH
    hopper = wide and on_hopper()
    if hopper:
        many = hopper_prefill(heads, rows, keys_count, k, q_stride)
    else:
        many = wide_prefill(heads, rows, keys_count, k, halves=halves)
    one = narrow_prefill(heads, keys_count, k, width=width)

    @T.prim_func
    def sparse_prefill(
        q: T.StridedTensor((rows, heads, width), (q_stride, width, 1), "bfloat16"),
        kv: T.Tensor((keys_count, width), "bfloat16"),
        indices: T.Tensor((rows, k), "int32"),
        lengths: T.Tensor((lengths_size,), "int32"),
        sink: T.Tensor((sink_size,), "float32"),
        out: T.Tensor((rows, heads, width), "bfloat16"),
        lse: T.Tensor((rows, heads), "float32"),
        has_lengths: T.int32,
        has_sink: T.int32,
        scale: T.float32,
        blocks: T.int32,
    ):
        with T.Kernel(
            blocks,
            T.ceildiv(heads, TILE),
            threads=3 * WARPGROUP if wide else WARPGROUP,
            prelude=GATHERED if hopper else WIDE if wide else NARROW,
        ) as (block, group):
            if wide:
                many(block, group, blocks, q, kv, indices, lengths, sink, out, lse, has_lengths, has_sink, scale)
            else:
                one(block, group, q, kv, indices, lengths, sink, out, lse, has_lengths, has_sink, scale)

    return sparse_prefill
