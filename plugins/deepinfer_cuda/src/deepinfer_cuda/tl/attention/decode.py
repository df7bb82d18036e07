"""Decode attention: the launch and its arguments. ``wide_decode.py`` and ``narrow.py`` have what a block does."""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.attention.hopper import hopper_decode
from deepinfer_cuda.tl.attention.narrow import narrow_decode
from deepinfer_cuda.tl.attention.places import entry_bytes
from deepinfer_cuda.tl.attention.softmax import TILE, on_hopper
from deepinfer_cuda.tl.attention.source import CACHED, NARROW, WIDE
from deepinfer_cuda.tl.attention.wide_decode import wide_decode
from deepinfer_cuda.tl.attention.workspace import WARPGROUP, WIDTH


@kernel(
    cases=[
        {"width": width, "window_format": "v41", "extra_format": extra, "segments": segments}
        for width, segments in ((WIDTH, 1), (WIDTH, 2), (WIDTH, 4), (64, 2))
        for extra in ("", "v41", "v41_fp4")
    ]
)
def sparse_decode(*, width: int, window_format: str, extra_format: str, segments: int) -> Any:
    """``window_format``, ``extra_format``: ``v41`` or ``v41_fp4``; "" where there is no extra cache.

    ``segments``: blocks that share a row, one, two or four, on Hopper where heads are wide; otherwise not looked at.
    ``blocks`` of its arguments: as many as rows, or, of one or two segments, as stay for several rows each.
    """
    rows, heads, q_stride, k1, k2 = (T.dynamic(n) for n in ("rows", "heads", "q_stride", "k1", "k2"))
    window_size, extra_size, lengths_size, extra_lengths_size, sink_size = (
        T.dynamic(n) for n in ("window_size", "extra_size", "lengths_size", "extra_lengths_size", "sink_size")
    )
    sizes = {"window_bytes": entry_bytes(window_format, width), "extra_bytes": entry_bytes(extra_format, width)}
    formats = {"window_format": window_format, "extra_format": extra_format, "sizes": sizes}
    if width == WIDTH and on_hopper():
        pieces, threads, prelude = segments, 4 * WARPGROUP, CACHED
        attend = hopper_decode(
            heads, rows, k1, k2, q_stride, segments=segments, window_format=window_format, extra_format=extra_format
        )
    elif width == WIDTH:
        # two blocks share a row with an extra cache: 64 rows of 640 keys then occupy all multiprocessors, evenly
        pieces, threads, prelude = 2 if extra_format else 1, 3 * WARPGROUP, WIDE
        attend = wide_decode(heads, k1, k2, segments=pieces, **formats)
    else:
        pieces, threads, prelude = 1, WARPGROUP, NARROW
        attend = narrow_decode(heads, k1, k2, width=width, **formats)

    @T.prim_func
    def sparse_decode(
        q: T.StridedTensor((rows, heads, width), (q_stride, width, 1), "bfloat16"),
        window: T.Tensor((window_size,), "uint8"),
        idx: T.Tensor((rows, k1), "int32"),
        lengths: T.Tensor((lengths_size,), "int32"),
        extra: T.Tensor((extra_size,), "uint8"),
        extra_idx: T.Tensor((rows, k2), "int32"),
        extra_lengths: T.Tensor((extra_lengths_size,), "int32"),
        sink: T.Tensor((sink_size,), "float32"),
        out: T.Tensor((rows, heads, width), "bfloat16"),
        lse: T.Tensor((rows, heads), "float32"),
        window_page: T.int32,
        window_stride: T.int32,
        extra_page: T.int32,
        extra_stride: T.int32,
        has_lengths: T.int32,
        has_extra_lengths: T.int32,
        has_sink: T.int32,
        scale: T.float32,
        blocks: T.int32,
    ):
        with T.Kernel(
            pieces * T.ceildiv(heads, TILE),
            blocks,
            threads=threads,
            cluster_dims=pieces if pieces > 1 else None,
            prelude=prelude,
        ) as (block, row):
            attend(
                block, row, q, window, idx, lengths, extra, extra_idx, extra_lengths, sink, out, lse, window_page,
                window_stride, extra_page, extra_stride, has_lengths, has_extra_lengths, has_sink, scale,
            )  # fmt: skip

    return sparse_decode
