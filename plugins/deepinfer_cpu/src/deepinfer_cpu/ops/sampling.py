"""The sampling pipeline's device steps, by sorting (``spec/sampling.md`` 2.2, 2.4, 2.5)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepinfer_cpu.contracts import shape_error

U64 = npt.NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
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
    requests = reqs.long()
    rows = first_row[requests].long() + step
    octets = bitmask.contiguous().numpy().view(np.uint8)
    forbidden = torch.from_numpy(np.unpackbits(octets, axis=1, count=vocab, bitorder="little")) == 0
    for i, (row, end) in enumerate(zip(rows.tolist(), first_row[requests + 1].tolist(), strict=True)):
        if row < end:
            logits[row].masked_fill_(forbidden[i], -math.inf)
    return logits


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


def mix(z: U64) -> U64:
    z = z + GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def key(seed: U64, position: U64, case: int) -> U64:
    """The 64-bit key of a draw, arrays ``[R]``; all arithmetic wraps."""
    with np.errstate(over="ignore"):
        if case >= 3:
            return key(mix(seed ^ np.uint64(case)), position, 0)
        s = (np.uint64(3) * position + np.uint64(case)) * GOLDEN
        return mix(seed + (s ^ (s << np.uint64(13))))


def draw(logprobs: Tensor, seeds: Tensor, positions: Tensor, *, case: int = 0) -> Tensor:
    """The canonical integer draw: int32 ``[R]``, the same on every backend for equal probabilities.

    :param seeds: 64-bit patterns ``[R]`` (int64 or uint64); ``positions`` absolute index of the token drawn ``[R]``.
    """
    rows = logprobs.shape[0] if logprobs.dim() == 2 else -1
    if seeds.numel() != rows or positions.numel() != rows:
        got = (list(logprobs.shape), list(seeds.shape), list(positions.shape))
        raise shape_error("sample.draw", "logprobs, seeds, positions", "[R, V], [R] and [R]", got)
    seed = seeds.cpu().numpy().astype(np.uint64, copy=False).reshape(-1)
    h = key(seed, positions.cpu().numpy().astype(np.uint64), case)
    probs = logprobs.exp().nan_to_num_(0.0)  # a row of NaN is the sampler's to report; here it must not break others
    weights = probs.mul(2.0**31).to(torch.int64)
    cumulative = weights.cumsum(1)
    total = cumulative[:, -1].cpu().numpy().astype(np.uint64)
    high, low = h >> np.uint64(32), h & np.uint64(0xFFFFFFFF)
    r = (high * total + (low * total >> np.uint64(32))) >> np.uint64(32)
    drawn = torch.searchsorted(
        cumulative, torch.from_numpy(r.astype(np.int64)).to(cumulative.device).unsqueeze(1), right=True
    ).squeeze(1)
    # No weight at all (every probability below 2^-31, or NaN): the most probable token, lowest id.
    fallback = probs.argmax(1)
    return torch.where(cumulative[:, -1] == 0, fallback, drawn).to(torch.int32)
