"""Hyper-connections: copies of the embedding, mixing coefficients, what a sublayer adds, and the collapse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.jit.serving.parts import Served, run

NAMES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
THREADS = 32
"""Tokens of a core at a time, where a thread takes one."""


def _is(x: Any, *shape: int) -> bool:
    """Numbers of that shape that a kernel takes, some of them."""
    return isinstance(x, Tensor) and x.dtype in NAMES and x.shape == shape and x.numel() > 0


def _is_f32(x: Any, *shape: int) -> bool:
    return isinstance(x, Tensor) and x.dtype == torch.float32 and x.shape == shape


def expand(served: Served, x: Tensor, c: int) -> Tensor:
    """``mhc.expand``."""
    if x.dim() != 2 or not _is(x, *x.shape) or c < 1:
        return served.op(x, c)  # type: ignore[no-any-return]
    rows, width = x.shape
    out, sizes = torch.empty(rows, c, width, dtype=x.dtype), {"width": width, "streams": c, "dtype": NAMES[x.dtype]}
    run("expand_rows", rows, sizes, x=x.contiguous(), out=out, rows=rows)
    return out


def pre(served: Served, stream: Tensor, a: Tensor, params: Any) -> Any:
    """``mhc.pre``: the products by ``gemm.dense``, coefficients and collapse by kernels."""
    c, whole = params.streams, stream.dim() == 3 and _is(stream, *stream.shape)
    fits = whole and stream.shape[1] == c and c * stream.shape[2] == params.fn.shape[0] and _is_f32(a, len(stream), c)
    if not fits:
        return served.op(stream, a, params)
    from deepinfer_ascend.ops.mhc import logits

    mix, rows = logits(stream, params).contiguous(), len(stream)
    both, comb = torch.empty(rows, 2 * c), torch.empty(rows, c, c)
    sizes, work = {"streams": c, "iters": params.iters}, -(-rows // THREADS)
    run("mix_coefficients", work, sizes, logits=mix, both=both, comb=comb, eps=params.eps, rows=rows)
    return served.table["mhc.head"](stream, a), both[:, :c], both[:, c:], comb


def post(served: Served, y: Tensor, stream: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """``mhc.post``."""
    rows, c, width = stream.shape if stream.dim() == 3 else (0, 0, 0)
    fits = rows and _is(stream, rows, c, width) and _is(y, rows, width) and y.dtype == stream.dtype
    if not fits or not _is_f32(post, rows, c) or not _is_f32(comb, rows, c, c):
        return served.op(y, stream, post, comb)  # type: ignore[no-any-return]
    out, sizes = torch.empty_like(stream), {"width": width, "streams": c, "dtype": NAMES[y.dtype]}
    given = {"y": y.contiguous(), "x": stream.contiguous(), "post": post.contiguous(), "comb": comb.contiguous()}
    run("post_rows", rows, sizes, out=out, rows=rows, **given)
    return out


def head(served: Served, stream: Tensor, a: Tensor) -> Tensor:
    """``mhc.head``."""
    rows, c, width = stream.shape if stream.dim() == 3 else (0, 0, 0)
    if not rows or not _is(stream, rows, c, width) or not _is_f32(a, rows, c):
        return served.op(stream, a)  # type: ignore[no-any-return]
    out, sizes = (
        torch.empty(rows, width, dtype=stream.dtype),
        {"width": width, "streams": c, "dtype": NAMES[stream.dtype]},
    )
    run("collapse_rows", rows, sizes, x=stream.contiguous(), a=a.contiguous(), out=out, rows=rows)
    return out


SERVED = {"mhc.expand": expand, "mhc.pre": pre, "mhc.post": post, "mhc.head": head}
