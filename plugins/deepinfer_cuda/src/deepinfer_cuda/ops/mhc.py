"""Hyper-connections of bf16 streams (``spec/model.md`` 2.4)."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from torch.nn.functional import pad

from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tl.mhc import (
    FEW,
    LANES,
    MANY,
    PARTS,
    RUNS,
    SLICE,
    coefficients,
    collapse_streams,
    groups_of,
    mix_logits,
    mix_streams,
    threads_of,
)

MANY_ROWS = 1025
"""From this many rows on, a block of :func:`mix_logits` has a group of slices instead of one."""


PLACES = 264
"""Blocks that run at once, two a multiprocessor."""


@frozen(eq=False)
class MixParams:
    """Coefficients of one sublayer, as the op of ``cpu`` has them (``fn`` fp32 ``[c*H, c*(c+2)]``, scale and base
    spread over its columns), and ``matrix``: ``fn`` in three bf16 parts, as the kernel reads it."""

    fn: Tensor
    scale: Tensor
    base: Tensor
    streams: int
    iters: int
    eps: float
    norm_eps: float
    matrix: Tensor | None


def prepare(
    fn: Tensor, scale: Tensor, base: Tensor, *, iters: int = 20, eps: float = 1e-6, norm_eps: float = 1e-20
) -> MixParams:
    """Checkpoint tensors of a sublayer, once at load: ``fn`` ``[c*(c+2), c*H]``, ``scale`` ``[3]``, ``base``
    ``[c*(c+2)]``, all fp32.

    :raises ShapeContractError: shapes do not fit, or ``iters`` is below 1.
    """
    plain = plain_op("mhc.prepare")(fn, scale, base, iters=iters, eps=eps, norm_eps=norm_eps)
    c, width = plain.streams, plain.fn.shape[0] // plain.streams
    takes = fn.is_cuda and width % SLICE == 0 and c * (c + 2) < LANES and width >= SLICE
    matrix = parts_of(fn.float(), c) if takes else None
    return MixParams(plain.fn, plain.scale.contiguous(), plain.base, c, iters, eps, norm_eps, matrix)


def run_of(slices: int, tiles: int) -> int:
    """Slices that a block takes, so that the blocks of ``tiles`` tiles of rows run at once."""
    return next((n for n in RUNS if slices % n == 0 and slices // n * tiles <= PLACES), 1)


def parts_of(fn: Tensor, c: int) -> Tensor:
    """``fn`` fp32 ``[c(c+2), cH]`` -> bf16 ``[slice, stream, part, 32 columns] x [64 positions]``.

    Three parts of eight bits each are the 24 bits of fp32.
    """
    high = fn.bfloat16()
    rest = fn - high.float()
    middle = rest.bfloat16()
    parts = torch.stack([high, middle, (rest - middle.float()).bfloat16()])
    sliced = parts.view(PARTS, fn.shape[0], c, -1, SLICE)
    padded = pad(sliced, (0, 0, 0, 0, 0, 0, 0, LANES - fn.shape[0]))
    return padded.permute(3, 2, 0, 1, 4).contiguous().view(-1, SLICE)


def pre(stream: Tensor, a: Tensor, params: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mixing coefficients of ``stream`` ``[T, c, H]`` and the sublayer's input by the *incoming* ``a`` fp32 ``[T, c]``.

    :returns: x ``[T, H]`` in the stream's dtype; a_next fp32 ``[T, c]``, post fp32 ``[T, c]`` and comb fp32
        ``[T, c source, c destination]``.
    :raises ShapeContractError: shapes or dtypes do not fit.
    """
    matrix = getattr(params, "matrix", None)
    if matrix is None or not _takes(stream, params.streams) or not _fits(a, stream.shape[:2]):
        return plain_op("mhc.pre")(stream, a, params)  # type: ignore[no-any-return]
    rows, c, width = stream.shape
    if c * width != params.fn.shape[0]:
        return plain_op("mhc.pre")(stream, a, params)  # type: ignore[no-any-return]
    x = torch.empty(rows, width, dtype=torch.bfloat16, device=stream.device)
    after, post, comb = (
        torch.empty(shape, dtype=torch.float32, device=stream.device) for shape in ((rows, c), (rows, c), (rows, c, c))
    )
    if not rows:
        return x, after, post, comb
    slices, many = width // SLICE, rows >= MANY_ROWS
    sums = slices // groups_of(slices) if many else slices
    partial = torch.empty(sums, rows, LANES, dtype=torch.float32, device=stream.device)
    if many:
        mix = mix_logits(streams=c, width=width, grouped=True, **MANY)
    else:
        run = run_of(slices, -(-rows // FEW["rows"]))
        mix = mix_logits(streams=c, width=width, grouped=False, **FEW, run=run)
    mix(stream.contiguous().view(rows, c * width), a.contiguous(), matrix, partial, x)
    finish = coefficients(streams=c, width=width, grouped=many, iterations=params.iters)
    finish(partial, params.scale, params.base, after, post, comb, params.eps, params.norm_eps)
    return x, after, post, comb


def post(y: Tensor, stream: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """``X_j <- post_j * y + sum_i comb_ij X_i`` in fp32, rounded once to the stream's dtype; ``y`` ``[T, H]``.

    :raises ShapeContractError: shapes or dtypes do not fit.
    """
    takes = _takes(stream, stream.shape[1] if stream.dim() == 3 else 0)
    rows, c, width = stream.shape if takes else (0, 0, 0)
    fits = _fits(post, (rows, c)) and _fits(comb, (rows, c, c))
    if (
        not takes
        or not fits
        or not threads_of(width)
        or y.dtype != torch.bfloat16
        or y.shape != (rows, width)
        or not y.is_cuda
    ):
        result: Tensor = plain_op("mhc.post")(y, stream, post, comb)
        return result
    out = torch.empty(stream.shape, dtype=stream.dtype, device=stream.device)
    if rows:
        launch = mix_streams(streams=c, width=width)
        launch(y.contiguous(), stream.contiguous(), post.contiguous(), comb.contiguous(), out)
    return out


def head(stream: Tensor, a: Tensor) -> Tensor:
    """The final collapse ``sum_j a_j X_j`` ``[T, H]`` in the stream's dtype."""
    takes = _takes(stream, stream.shape[1] if stream.dim() == 3 else 0)
    if not takes or not threads_of(stream.shape[2]) or not _fits(a, stream.shape[:2]):
        result: Tensor = plain_op("mhc.head")(stream, a)
        return result
    rows, c, width = stream.shape
    out = torch.empty(rows, width, dtype=stream.dtype, device=stream.device)
    if rows:
        collapse_streams(streams=c, width=width)(stream.contiguous(), a.contiguous(), out)
    return out


def _takes(stream: Tensor, c: int) -> bool:
    return stream.is_cuda and stream.dtype == torch.bfloat16 and stream.dim() == 3 and stream.shape[1] == c > 0


def _fits(numbers: Tensor, shape: Any) -> bool:
    return numbers.is_cuda and numbers.dtype == torch.float32 and numbers.shape == torch.Size(shape)


OPS = {"mhc.prepare": prepare, "mhc.pre": pre, "mhc.post": post, "mhc.head": head}
DELEGATED = {
    "mhc.expand": "one copy, by torch, once a step",
}
"""What the op of ``cpu`` does on this device, and why that is enough."""
