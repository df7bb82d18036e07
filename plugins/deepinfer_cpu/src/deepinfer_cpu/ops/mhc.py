"""Manifold-constrained hyper-connections, the single-pass form (``spec/model.md`` 2.4).

The mixing coefficients of a token are 24 numbers. The 20 Sinkhorn iterations over 16 of them are some 120 tiny steps: a
quarter of a millisecond a sublayer in torch, 16 times a decode step. So they run in fp64 outside torch: in NumPy, laid
out coefficient by coefficient (``[24, T]``), or in plain Python for one token. A token's bits are the same either way.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen
from torch import Tensor

from deepinfer_cpu.contracts import check_floats, check_like, shape_error
from deepinfer_cpu.ops.gemm import product
from deepinfer_cpu.ops.norm import inverse_rms
from deepinfer_cpu.scalars import is_host

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
    check_floats("mhc.expand", "x", x, 2)
    if c < 1:
        raise shape_error("mhc.expand", "c", "1 or more", c)
    return x.unsqueeze(1).repeat(1, c, 1)


def prepare(
    fn: Tensor, scale: Tensor, base: Tensor, *, iters: int = 20, eps: float = 1e-6, norm_eps: float = 1e-20
) -> MixParams:
    """Checkpoint tensors of a sublayer, once at load: ``fn`` ``[c*(c+2), c*H]``, ``scale`` ``[3]``, ``base``
    ``[c*(c+2)]``, all fp32."""
    rows = fn.shape[0]
    c = next((n for n in range(1, rows) if n * (n + 2) == rows), 0)
    if not c or fn.dim() != 2 or fn.shape[1] % c or scale.shape != (3,) or base.shape != (rows,):
        raise shape_error(
            "mhc.prepare", "fn, scale, base", "[c(c+2), cH], [3], [c(c+2)]", (fn.shape, scale.shape, base.shape)
        )
    if iters < 1:
        raise shape_error("mhc.prepare", "iters", "1 or more", iters)
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
    check_floats("mhc.pre", "stream", stream)
    check_like("mhc.pre", "a", a, stream.shape[:2], torch.float32)
    z = stream.reshape(stream.shape[0], params.fn.shape[0]).float()
    mix = torch.addcmul(params.base, product(z, params.fn) * inverse_rms(z, params.norm_eps), params.scale)
    if is_host(mix):
        both, mixed = coefficients(mix.numpy(), c, params.iters, params.eps)
    else:
        both, mixed = _coefficients_on_device(mix, c, params.iters, params.eps)
    return collapse(z.view(stream.shape), a, stream.dtype), both[:, :c], both[:, c:], mixed


def coefficients(mix: npt.NDArray[np.float32], c: int, iters: int, eps: float) -> tuple[Tensor, Tensor]:
    """``[T, c(c+2)]`` logits -> fp32 ``[T, 2c]`` (pre, post) and ``[T, c source, c destination]``."""
    with np.errstate(invalid="ignore"):  # a broken row stays broken and says so in its logits
        if mix.shape[0] == 1 and c == 4 and eps > 0:
            return _coefficients_of_one(mix[0].tolist(), iters, eps)
        return _coefficients_of_many(mix, c, iters, eps)


def _coefficients_of_many(mix: npt.NDArray[np.float32], c: int, iters: int, eps: float) -> tuple[Tensor, Tensor]:
    wide = mix.T.astype(np.float64)  # [c(c+2), T], contiguous in tokens
    head = 1.0 / (1.0 + np.exp(np.minimum(-wide[: 2 * c], 700.0)))
    head[:c] += eps
    head[c:] *= 2.0
    comb = sinkhorn(wide[2 * c :].reshape(c, c, -1), iters, eps)
    both = torch.from_numpy(np.ascontiguousarray(head.T, dtype=np.float32))
    # The destination index comes first in memory: that is how ``post`` multiplies.
    mixed = torch.from_numpy(np.ascontiguousarray(comb.transpose(2, 1, 0), dtype=np.float32)).transpose(1, 2)
    return both, mixed


def _coefficients_on_device(mix: Tensor, c: int, iters: int, eps: float) -> tuple[Tensor, Tensor]:
    """The steps of :func:`_coefficients_of_many` in torch, where the values are."""
    wide = mix.t().double()
    head = (-wide[: 2 * c]).clamp(max=700.0).exp_().add_(1.0).reciprocal_()
    both = torch.cat([head[:c] + eps, head[c:] * 2.0])
    logits = wide[2 * c :].reshape(c, c, -1)
    b = (logits - logits.amax(1, keepdim=True)).exp_()
    b = b / _in_order(b, 1) + eps
    b = b / (_in_order(b, 0) + eps)
    for _ in range(iters - 1):
        b = b / (_in_order(b, 1) + eps)
        b = b / (_in_order(b, 0) + eps)
    return both.t().float().contiguous(), b.permute(2, 1, 0).float().contiguous().transpose(1, 2)


def _in_order(b: Tensor, dim: int) -> Tensor:
    """Sum over ``dim`` in index order, kept as a dimension."""
    first, *others = b.unbind(dim)
    for part in others:
        first = first + part
    return first.unsqueeze(dim)


def collapse(z: Tensor, a: Tensor, dtype: torch.dtype) -> Tensor:
    """``sum_j a_j z_j``: fp32 ``[T, c, H]`` -> ``[T, H]`` of ``dtype``."""
    return torch.bmm(a.unsqueeze(1), z).squeeze(1).to(dtype)


def _coefficients_of_one(mix: list[float], iters: int, eps: float) -> tuple[Tensor, Tensor]:
    """The same for one token of four streams, in Python floats around one call of NumPy's exp."""
    arguments = [min(-v, 700.0) for v in mix[:8]]
    for at in (8, 12, 16, 20):
        row = mix[at : at + 4]
        top = max(row)
        arguments += [v - top for v in row]
    powers = np.exp(np.array(arguments)).tolist()
    head = [1.0 / (1.0 + p) + eps for p in powers[:4]] + [1.0 / (1.0 + p) * 2.0 for p in powers[4:8]]
    comb = _sinkhorn_of_one(powers[8:], iters, eps)
    both = torch.from_numpy(np.array(head, dtype=np.float32).reshape(1, 8))
    by_destination = [comb[4 * i + j] for j in range(4) for i in range(4)]
    mixed = torch.from_numpy(np.array(by_destination, dtype=np.float32).reshape(1, 4, 4))
    return both, mixed.transpose(1, 2)


def sinkhorn(logits: F64, iters: int, eps: float) -> F64:
    """``[source, destination, T]`` -> softmax over destinations + eps, then normalised over sources; ``iters - 1`` more
    rounds of destinations and sources. The last step is over sources. Sums run in index order."""
    b = np.exp(logits - np.maximum.reduce(logits, 1, keepdims=True))
    if b.shape == (4, 4, 1) and eps > 0:  # Python divides by no zero
        return np.array(_sinkhorn_of_one(b.ravel().tolist(), iters, eps)).reshape(4, 4, 1)
    sums = np.empty((b.shape[0], b.shape[2]))
    over_sources, over_destinations = sums[None], sums[:, None]
    _sum_over(b, 1, sums)
    b /= over_destinations
    b += eps
    small = np.array(eps)  # an array: NumPy converts a Python float anew in every call
    add, divide = np.add, np.divide
    _sum_over(b, 0, sums)
    add(sums, small, sums)
    divide(b, over_sources, b)
    for _ in range(iters - 1):
        _sum_over(b, 1, sums)
        add(sums, small, sums)
        divide(b, over_destinations, b)
        _sum_over(b, 0, sums)
        add(sums, small, sums)
        divide(b, over_sources, b)
    return b


def _sum_over(b: F64, axis: int, out: F64) -> None:
    """Sum over sources (0) or destinations (1) in index order."""
    if b.shape[2] > 1:
        np.add.reduce(b, axis, out=out)
        return
    # Of a single token NumPy's reduction would add in another order.
    first, *others = b if axis == 0 else b.swapaxes(0, 1)
    np.copyto(out, first)
    for part in others:
        np.add(out, part, out)


def _sinkhorn_of_one(b: list[float], iters: int, eps: float) -> list[float]:
    """The same steps for one token of four streams in Python's own floats: a fifth of the time of 120 NumPy calls, and
    the same bits. Names: letter = source, digit = destination."""
    a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3 = b
    s = a0 + a1 + a2 + a3
    a0, a1, a2, a3 = a0 / s + eps, a1 / s + eps, a2 / s + eps, a3 / s + eps
    s = b0 + b1 + b2 + b3
    b0, b1, b2, b3 = b0 / s + eps, b1 / s + eps, b2 / s + eps, b3 / s + eps
    s = c0 + c1 + c2 + c3
    c0, c1, c2, c3 = c0 / s + eps, c1 / s + eps, c2 / s + eps, c3 / s + eps
    s = d0 + d1 + d2 + d3
    d0, d1, d2, d3 = d0 / s + eps, d1 / s + eps, d2 / s + eps, d3 / s + eps
    for i in range(iters):
        if i:
            s = a0 + a1 + a2 + a3 + eps
            a0, a1, a2, a3 = a0 / s, a1 / s, a2 / s, a3 / s
            s = b0 + b1 + b2 + b3 + eps
            b0, b1, b2, b3 = b0 / s, b1 / s, b2 / s, b3 / s
            s = c0 + c1 + c2 + c3 + eps
            c0, c1, c2, c3 = c0 / s, c1 / s, c2 / s, c3 / s
            s = d0 + d1 + d2 + d3 + eps
            d0, d1, d2, d3 = d0 / s, d1 / s, d2 / s, d3 / s
        s = a0 + b0 + c0 + d0 + eps
        a0, b0, c0, d0 = a0 / s, b0 / s, c0 / s, d0 / s
        s = a1 + b1 + c1 + d1 + eps
        a1, b1, c1, d1 = a1 / s, b1 / s, c1 / s, d1 / s
        s = a2 + b2 + c2 + d2 + eps
        a2, b2, c2, d2 = a2 / s, b2 / s, c2 / s, d2 / s
        s = a3 + b3 + c3 + d3 + eps
        a3, b3, c3, d3 = a3 / s, b3 / s, c3 / s, d3 / s
    return [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3]


def post(y: Tensor, stream: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """``X_j <- post_j * y + sum_i comb_ij X_i`` in fp32, rounded once to the stream's dtype; ``y`` ``[T, H]``."""
    check_floats("mhc.post", "stream", stream, 3)
    tokens, c, width = stream.shape
    check_floats("mhc.post", "y", y)
    check_like("mhc.post", "y", y, (tokens, width))
    check_like("mhc.post", "post", post, (tokens, c), torch.float32)
    check_like("mhc.post", "comb", comb, (tokens, c, c), torch.float32)
    added = post.unsqueeze(2) * y.unsqueeze(1)
    return torch.baddbmm(added, comb.transpose(1, 2), stream.float()).to(stream.dtype)


def head(stream: Tensor, a: Tensor) -> Tensor:
    """The final collapse ``sum_j a_j X_j`` ``[T, H]`` in the stream's dtype."""
    check_floats("mhc.head", "stream", stream, 3)
    check_like("mhc.head", "a", a, stream.shape[:2], torch.float32)
    return collapse(stream.float(), a, stream.dtype)
