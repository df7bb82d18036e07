"""Hyper-connections (``spec/model.md`` 2.4): the mixing coefficients, which the plain op makes in fp64 on a device.

The chip has no fp64. In fp32 they are within 1e-6 of those, and the table of ops allows 1e-5. On the host, under
emulation, the plain op computes them as ever.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.contracts import check, misfit
from deepinfer_ascend.plain import plain_op
from deepinfer_ascend.tensors import PlainWeight


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
    flat = stream.reshape(len(stream), -1).float()
    scaled = plain_op("gemm.dense")(flat, PlainWeight("fn", params.fn))
    mix = torch.addcmul(params.base, scaled * _inverse_rms(flat, params.norm_eps), params.scale)
    ahead, behind, comb = coefficients(mix, c, params.iters, params.eps)
    return plain_op("mhc.head")(stream, a), ahead, behind, comb


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


OPS = {"mhc.pre": pre}
