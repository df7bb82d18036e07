"""The sampling pipeline's device steps, by sorting (``spec/sampling.md`` 2.2, 2.4, 2.5)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from deepinfer_cpu.contracts import shape_error

GREEDY_BELOW = 1e-5


def mask(logits: Tensor, bitmask: Tensor, reqs: Tensor, first_row: Tensor, step: int) -> Tensor:
    """-inf, in place, for tokens whose bit is 0, on row ``first_row[r] + step`` of each listed request.

    :param bitmask: int32 ``[n, ceil(V / 32)]``, bit t % 32 of word t // 32; row i belongs to request ``reqs[i]``.
    :param first_row: int32 ``[N + 1]``, rows of request r are ``[first_row[r], first_row[r + 1])``; a step past them is
        ignored.
    """
    if logits.dim() != 2 or bitmask.dim() != 2 or bitmask.dtype != torch.int32:
        got = (list(logits.shape), list(bitmask.shape), bitmask.dtype)
        raise shape_error("sample.mask", "logits, bitmask", "[R, V] and int32 [n, words]", got)
    vocab = logits.shape[1]
    if bitmask.shape[1] != -(-vocab // 32) or bitmask.shape[0] != reqs.shape[0]:
        raise shape_error("sample.mask", "bitmask", f"[{reqs.shape[0]}, {-(-vocab // 32)}]", list(bitmask.shape))
    requests, count = reqs.long(), logits.shape[0]
    rows, ends = first_row[requests].long() + step, first_row[requests + 1].long()
    bits = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    forbidden = ((bitmask.unsqueeze(2) >> bits) & 1).flatten(1)[:, :vocab] == 0
    # A row without a mask of its own reads a mask behind the last one, which forbids nothing.
    of_row = torch.full((count + 1,), len(reqs), dtype=torch.long, device=logits.device)
    of_row = of_row.scatter_(0, rows.masked_fill(rows >= ends, count), torch.arange(len(reqs), device=logits.device))
    forbidden = torch.cat([forbidden, forbidden.new_zeros(1, vocab)])
    return logits.masked_fill_(forbidden.index_select(0, of_row[:count]), -math.inf)


def logprobs(logits: Tensor, params: Any) -> Tensor:
    """Temperature, min-p, top-p, top-k and renormalisation of fp32 ``[R, V]``; dropped tokens get -inf.

    ``params`` has ``temperature``, ``top_p``, ``top_k`` (-1 off) and ``min_p`` as tensors ``[R]`` (min_p may be None).
    Rows with a temperature below 1e-5 keep their best token only. Equal logits rank by lower id.
    """
    temperature, top_p, top_k = params.temperature, params.top_p, params.top_k
    if temperature.shape[0] != logits.shape[0]:
        raise shape_error("sample.logprobs", "params", f"[{logits.shape[0]}] each", list(temperature.shape))
    greedy = temperature < GREEDY_BELOW
    inverse = torch.where(greedy, torch.ones_like(temperature), temperature).reciprocal()
    scaled = logits * inverse.unsqueeze(1)
    keep = scaled > -math.inf
    probs = torch.softmax(scaled, dim=1)
    if params.min_p is not None:
        keep &= probs >= params.min_p.unsqueeze(1) * probs.amax(1, keepdim=True)
        probs = torch.softmax(scaled.masked_fill(~keep, -math.inf), dim=1)
    order = scaled.masked_fill(~keep, -math.inf).sort(dim=1, descending=True, stable=True).indices
    ranked = probs.gather(1, order)
    before = ranked.double().cumsum(1) - ranked.double()
    rank = torch.arange(logits.shape[1], device=logits.device)
    kept = keep.gather(1, order) & (before <= top_p.unsqueeze(1))
    kept &= (rank < top_k.unsqueeze(1)) | (top_k.unsqueeze(1) < 1)
    kept &= (rank < 1) | ~greedy.unsqueeze(1)
    keep = torch.zeros_like(keep).scatter_(1, order, kept)
    return torch.log_softmax(scaled.masked_fill(~keep, -math.inf), dim=1)


def _signed(value: int) -> int:
    """The int64 with the bits of an unsigned number: torch has no arithmetic on those, and both wrap around alike."""
    return value - (1 << 64) if value >> 63 else value


GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
_LOW_32 = 0xFFFFFFFF


def shifted(z: Tensor, count: int) -> Tensor:
    """``z >> count`` of the bits, zeros coming in from above."""
    return (z >> count) & ((1 << (64 - count)) - 1)


def mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser over ``z + golden``; int64 bit patterns, all arithmetic wraps."""
    z = z + GOLDEN
    z = (z ^ shifted(z, 30)) * _MIX_1
    z = (z ^ shifted(z, 27)) * _MIX_2
    return z ^ shifted(z, 31)


def key(seed: Tensor, position: Tensor, case: int) -> Tensor:
    """The 64-bit key of a draw, int64 ``[R]`` each."""
    if case >= 3:
        return key(mix(seed ^ case), position, 0)
    s = (3 * position + case) * GOLDEN
    return mix(seed + (s ^ (s << 13)))


def bits_of(seeds: Tensor) -> Tensor:
    """Seeds of any integer type as int64 bit patterns ``[R]``."""
    flat = seeds.reshape(-1)
    return flat.view(torch.int64) if flat.dtype == torch.uint64 else flat.long()


def draw(logprobs: Tensor, seeds: Tensor, positions: Tensor, *, case: int = 0) -> Tensor:
    """The canonical integer draw: int32 ``[R]``, the same on every backend for equal probabilities.

    :param seeds: 64-bit patterns ``[R]`` (int64 or uint64); ``positions`` absolute index of the token drawn ``[R]``.
    """
    rows = logprobs.shape[0] if logprobs.dim() == 2 else -1
    if seeds.numel() != rows or positions.numel() != rows:
        got = (list(logprobs.shape), list(seeds.shape), list(positions.shape))
        raise shape_error("sample.draw", "logprobs, seeds, positions", "[R, V], [R] and [R]", got)
    h = key(bits_of(seeds), positions.reshape(-1).long(), case)
    probs = logprobs.exp().nan_to_num_(0.0)  # a row of NaN is the sampler's to report; here it must not break others
    weights = probs.mul(2.0**31).to(torch.int64)
    cumulative = weights.cumsum(1)
    total = cumulative[:, -1]
    high, low = shifted(h, 32), h & _LOW_32
    target = shifted(high * total + shifted(low * total, 32), 32)
    drawn = torch.searchsorted(cumulative, target.unsqueeze(1), right=True).squeeze(1)
    # No weight at all (every probability below 2^-31, or NaN): the most probable token, lowest id.
    fallback = probs.argmax(1)
    return torch.where(total == 0, fallback, drawn).to(torch.int32)
