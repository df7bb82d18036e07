"""Manifold-constrained hyper-connections, the single-pass form (``spec/model.md`` 2.4).

The mixing coefficients of a token are 24 numbers; they are computed in fp64 with NumPy, laid out coefficient by
coefficient (``[24, T]``): the 20 Sinkhorn iterations are some 120 tiny steps, NumPy's overhead for them is half of
torch's, and each token's numbers are independent of how many tokens stand beside it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen
from torch import Tensor

from deepinfer_cpu.contracts import shape_error
from deepinfer_cpu.ops.gemm import product

F64 = npt.NDArray[np.float64]


@frozen(eq=False)
class MixParams:
    """Coefficients of one sublayer: ``fn`` fp32 ``[c*H, c*(c+2)]``, scale and base spread over its columns."""

    fn: Tensor
    scale: Tensor
    base: Tensor
    streams: int
    iters: int
    eps: float
    norm_eps: float


def expand(x: Tensor, c: int) -> Tensor:
    """``[T, H]`` -> ``c`` copies ``[T, c, H]``."""
    return x.unsqueeze(1).repeat(1, c, 1)


def prepare(
    fn: Tensor, scale: Tensor, base: Tensor, *, iters: int = 20, eps: float = 1e-6, norm_eps: float = 1e-20
) -> MixParams:
    """Checkpoint tensors of a sublayer, once at load: ``fn`` ``[c*(c+2), c*H]``, ``scale`` ``[3]``, ``base``
    ``[c*(c+2)]``, all fp32."""
    rows = fn.shape[0]
    c = next((n for n in range(1, rows) if n * (n + 2) == rows), 0)
    if not c or scale.shape != (3,) or base.shape != (rows,):
        raise shape_error(
            "mhc.prepare", "fn, scale, base", "[c(c+2), cH], [3], [c(c+2)]", (fn.shape, scale.shape, base.shape)
        )
    spread = torch.cat([scale[0].repeat(c), scale[1].repeat(c), scale[2].repeat(c * c)]).float()
    return MixParams(fn.float().t().contiguous(), spread, base.float().contiguous(), c, iters, eps, norm_eps)


def pre(stream: Tensor, a: Tensor, params: MixParams) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mixing coefficients of ``stream`` ``[T, c, H]`` and the sublayer's input by the *incoming* ``a`` fp32 ``[T, c]``.

    :returns: x ``[T, H]`` in the stream's dtype; a_next fp32 ``[T, c]``, post fp32 ``[T, c]`` and comb fp32
        ``[T, c source, c destination]``.
    """
    c = params.streams
    if stream.dim() != 3 or stream.shape[1] != c or stream.shape[1] * stream.shape[2] != params.fn.shape[0]:
        raise shape_error("mhc.pre", "stream", f"[T, {c}, {params.fn.shape[0] // c}]", list(stream.shape))
    z = stream.float().view(stream.shape[0], -1)
    rstd = (z * z).mean(-1, keepdim=True).add_(params.norm_eps).rsqrt_()
    mix = torch.addcmul(params.base, product(z, params.fn) * rstd, params.scale)
    coefficients = mix.numpy().T.astype(np.float64)  # [c(c+2), T]
    head = 1.0 / (1.0 + np.exp(np.minimum(-coefficients[: 2 * c], 700.0)))
    comb = sinkhorn(coefficients[2 * c :].reshape(c, c, -1), params.iters, params.eps)
    head[:c] += params.eps
    head[c:] *= 2.0
    both = torch.from_numpy(np.ascontiguousarray(head.T, dtype=np.float32))
    # Kept with the destination index first in memory: that is how ``post`` multiplies.
    mixed = torch.from_numpy(np.ascontiguousarray(comb.transpose(2, 1, 0), dtype=np.float32)).transpose(1, 2)
    return collapse(z.view(stream.shape), a, stream.dtype), both[:, :c], both[:, c:], mixed


def collapse(z: Tensor, a: Tensor, dtype: torch.dtype) -> Tensor:
    """``sum_j a_j z_j``: fp32 ``[T, c, H]`` -> ``[T, H]`` of ``dtype``."""
    return torch.bmm(a.unsqueeze(1), z).squeeze(1).to(dtype)


def sinkhorn(logits: F64, iters: int, eps: float) -> F64:
    """``[source, destination, T]`` -> softmax over destinations + eps, then normalised over sources; ``iters - 1`` more
    rounds of destinations and sources. The last step is over sources."""
    b = np.exp(logits - np.maximum.reduce(logits, 1, keepdims=True))
    b /= np.add.reduce(b, 1, keepdims=True)
    b += eps
    sums = np.empty((b.shape[0], b.shape[2]))
    over_sources, over_destinations = sums[None], sums[:, None]
    # Positional arguments: with keywords NumPy takes half as long again for arrays this small.
    reduce_, add, divide = np.add.reduce, np.add, np.divide
    reduce_(b, 0, None, sums)
    add(sums, eps, sums)
    divide(b, over_sources, b)
    for _ in range(iters - 1):
        reduce_(b, 1, None, sums)
        add(sums, eps, sums)
        divide(b, over_destinations, b)
        reduce_(b, 0, None, sums)
        add(sums, eps, sums)
        divide(b, over_sources, b)
    return b


def post(y: Tensor, stream: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """``X_j <- post_j * y + sum_i comb_ij X_i`` in fp32, rounded once to the stream's dtype; ``y`` ``[T, H]``."""
    if y.shape[0] != stream.shape[0] or y.shape[1] != stream.shape[2]:
        raise shape_error("mhc.post", "y", f"[{stream.shape[0]}, {stream.shape[2]}]", list(y.shape))
    added = post.unsqueeze(2) * y.unsqueeze(1)
    return torch.baddbmm(added, comb.transpose(1, 2), stream.float()).to(stream.dtype)


def head(stream: Tensor, a: Tensor) -> Tensor:
    """The final collapse ``sum_j a_j X_j`` ``[T, H]`` in the stream's dtype."""
    return collapse(stream.float(), a, stream.dtype)
