"""Hyper-connections (``spec/model.md`` 2.4): streams by kernels of tile-kernels, coefficients in fp32.

The plain op makes coefficients in fp64 on a device, and the chip has none. In fp32 they are within 1e-6 of those, and
the table of ops allows 1e-5. On the host, under emulation, the plain op computes them as ever.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend import vendor
from deepinfer_ascend.contracts import check, misfit
from deepinfer_ascend.plain import plain_op
from deepinfer_ascend.tensors import PlainWeight

LANES = 128
"""Hidden sizes that the kernels take are multiples of it."""


def expand(x: Tensor, c: int) -> Tensor:
    """``[T, H]`` -> ``c`` copies ``[T, c, H]``."""
    if x.dim() != 2 or not _takes(x) or c < 1:
        return plain_op("mhc.expand")(x, c)  # type: ignore[no-any-return]
    out = x.new_empty(x.shape[0], c, x.shape[1])
    vendor.symbol("tile_kernels.expand_to_mhc_fwd", x)(x, out)
    return out


def post(y: Tensor, stream: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """``X_j <- post_j * y + sum_i comb_ij X_i`` in fp32, rounded once to the stream's dtype; ``y`` ``[T, H]``."""
    fits = (
        stream.dim() == 3 and _takes(stream) and y.dtype == stream.dtype and y.shape == (len(stream), stream.shape[2])
    )
    mixes = post.dtype == comb.dtype == torch.float32 and post.shape == stream.shape[:2]
    if not fits or not mixes or comb.shape != (*stream.shape[:2], stream.shape[1]):
        return plain_op("mhc.post")(y, stream, post, comb)  # type: ignore[no-any-return]
    add = vendor.symbol("tile_kernels.mhc_post_fwd", stream)
    one = (y.contiguous(), stream, post.contiguous().unsqueeze(2), comb.contiguous())  # a batch of one sequence
    return add(*(part.unsqueeze(0) for part in one)).squeeze(0)  # type: ignore[no-any-return]


def head(stream: Tensor, a: Tensor) -> Tensor:
    """The final collapse ``sum_j a_j X_j`` ``[T, H]`` in the stream's dtype."""
    mixes = a.dtype == torch.float32 and a.shape == stream.shape[:2]
    if stream.dim() != 3 or not _takes(stream) or not mixes:
        return plain_op("mhc.head")(stream, a)  # type: ignore[no-any-return]
    out = stream.new_empty(stream.shape[0], stream.shape[2])
    vendor.symbol("tile_kernels.mhc_pre_apply_mix_fwd", stream)(stream, a.contiguous(), out)
    return out


def _takes(x: Tensor) -> bool:
    """Rows that the kernels read: bf16, one behind the other, whole registers."""
    return x.dtype == torch.bfloat16 and x.numel() > 0 and x.is_contiguous() and x.shape[-1] % LANES == 0


def pre(stream: Tensor, a: Tensor, params: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mixing coefficients of ``stream`` ``[T, c, H]`` and the sublayer's input by the *incoming* ``a`` fp32 ``[T, c]``.

    :returns: x ``[T, H]`` in the stream's dtype; a_next fp32 ``[T, c]``, post fp32 ``[T, c]`` and comb fp32
        ``[T, c source, c destination]``.
    """
    if stream.device.type == "cpu":
        return plain_op("mhc.pre")(stream, a, params)  # type: ignore[no-any-return]
    c = params.streams
    if stream.dim() != 3 or stream.shape[1] != c or c * stream.shape[2] != params.fn.shape[0]:
        raise misfit("mhc.pre", "stream", f"[T, {c}, {params.fn.shape[0] // c}]", list(stream.shape))
    check("mhc.pre", "a", a, torch.float32, *stream.shape[:2])
    mix = logits(stream, params)
    ahead, behind, comb = coefficients(mix, c, params.iters, params.eps)
    return head(stream, a), ahead, behind, comb


def logits(stream: Tensor, params: Any) -> Tensor:
    """What the coefficients are made of: fp32 ``[T, c(c+2)]``."""
    flat = stream.reshape(len(stream), -1).float()
    scaled = plain_op("gemm.dense")(flat, PlainWeight("fn", params.fn))
    return torch.addcmul(params.base, scaled * _inverse_rms(flat, params.norm_eps), params.scale)


def coefficients(mix: Tensor, c: int, iters: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """fp32 ``[T, c(c+2)]`` -> pre and post ``[T, c]``, and comb ``[T, c, c]``: softmax over destinations plus ``eps``,
    then divided over sources, and ``iters - 1`` more rounds of both."""
    ahead, behind = torch.sigmoid(mix[:, :c]) + eps, torch.sigmoid(mix[:, c : 2 * c]) * 2.0
    comb = torch.softmax(mix[:, 2 * c :].view(-1, c, c), dim=2) + eps
    comb = comb / (comb.sum(1, keepdim=True) + eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(2, keepdim=True) + eps)
        comb = comb / (comb.sum(1, keepdim=True) + eps)
    return ahead, behind, comb


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    return (x.square().mean(1, keepdim=True) + eps).rsqrt()


OPS = {"mhc.pre": pre, "mhc.expand": expand, "mhc.post": post, "mhc.head": head}
