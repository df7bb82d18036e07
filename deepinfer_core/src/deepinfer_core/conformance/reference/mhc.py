"""Hyper-connections, single-pass form, in fp64 (``spec/model.md`` 2.4)."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor


@frozen(eq=False)
class Mixing:
    """``a`` (pre of the next sublayer) and ``post`` fp64 ``[T, c]``; ``comb`` ``[T, source, destination]``."""

    a: Tensor
    post: Tensor
    comb: Tensor


def sinkhorn(logits: Tensor, iters: int, eps: float) -> Tensor:
    """``[T, source, destination]``: softmax over destinations, + eps, over sources; then ``iters`` - 1 times both."""
    b = logits.double().softmax(-1) + eps
    b = b / (b.sum(1, keepdim=True) + eps)
    for _ in range(iters - 1):
        b = b / (b.sum(2, keepdim=True) + eps)
        b = b / (b.sum(1, keepdim=True) + eps)
    return b


def mixing(
    stream: Tensor, fn: Tensor, scale: Tensor, base: Tensor, iters: int = 20, eps: float = 1e-6, norm_eps: float = 1e-20
) -> Mixing:
    """Coefficients of ``stream`` ``[T, c, H]``; ``fn`` ``[c(c+2), cH]``, ``scale`` ``[3]``, ``base`` ``[c(c+2)]``."""
    c = stream.shape[1]
    z = stream.double().flatten(1)
    m = z @ fn.double().t() / (z.square().mean(1, keepdim=True) + norm_eps).sqrt()
    s, b = scale.double(), base.double()
    a = torch.sigmoid(m[:, :c] * s[0] + b[:c]) + eps
    post = 2 * torch.sigmoid(m[:, c : 2 * c] * s[1] + b[c : 2 * c])
    logits = (m[:, 2 * c :] * s[2] + b[2 * c :]).view(-1, c, c)
    return Mixing(a, post, sinkhorn(logits, iters, eps))


def collapse(stream: Tensor, a: Tensor) -> Tensor:
    """``sum_j a_j X_j``, fp64 ``[T, H]``."""
    return (a.double().unsqueeze(2) * stream.double()).sum(1)


def post(y: Tensor, stream: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """``X_j <- post_j y + sum_i comb_ij X_i``, fp64 ``[T, c, H]``."""
    mixed = torch.einsum("tij,tih->tjh", comb.double(), stream.double())
    return mixed + post.double().unsqueeze(2) * y.double().unsqueeze(1)
