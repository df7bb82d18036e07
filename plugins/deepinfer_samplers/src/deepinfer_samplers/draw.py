"""The canonical draw: integers only, so equal weights give the same token everywhere (``spec/sampling.md`` 2.5).

A prefix sum of integers has one value in whatever order it is formed. Keys are 64-bit patterns held as int64, because
torch has no arithmetic on uint64; the logical shifts below mask the sign bits that an arithmetic shift brings in.
"""

from __future__ import annotations

from typing import Final

import torch

from deepinfer_samplers import shortcuts

WEIGHT_ONE: Final = float(2**31)
"""Weight of a token of probability 1. A token below 2**-31 has weight 0 and is never drawn."""
_BLOCK: Final = 128
"""Neighbours whose weights are summed before the row is scanned: a scan of sums costs a fraction of one of tokens."""
_LOW_32: Final = 0xFFFFFFFF


def weights(probabilities: torch.Tensor) -> torch.Tensor:
    """``floor(p * 2**31)`` of each token: f32 ``[R, V]`` -> int64 ``[R, V]``. The scaling is exact."""
    return (probabilities * WEIGHT_ONE).to(torch.int64)


def targets(keys: torch.Tensor, totals: torch.Tensor) -> torch.Tensor:
    """``floor(key * total / 2**64)``: int64 ``[R]`` bit patterns and ``[R]`` totals below 2**32 -> int64 ``[R]``."""
    high, low = _upper(keys), keys & _LOW_32
    return _upper(high * totals + _upper(low * totals))


def draw(probabilities: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """One token of each row: the lowest id whose inclusive weight sum exceeds the row's target.

    :param probabilities: f32 ``[R, V]``, each row summing to at most ``1 + 1e-4``.
    :param keys: int64 ``[R]``, the bits of the u64 keys of `hashing.draw_keys`.
    :returns: int64 ``[R]``. A row whose weights are all 0 gets its most probable token, the lowest id on ties.
    """
    parts = weights(probabilities)
    width = parts.shape[1]
    blocks = _block_sums(parts).cumsum(-1)
    totals = blocks[:, -1]
    wanted = targets(keys, totals).unsqueeze(1)
    block = torch.searchsorted(blocks, wanted, right=True).clamp_(max=blocks.shape[1] - 1)
    before = torch.where(block > 0, blocks.gather(1, (block - 1).clamp_(min=0)), 0)
    ids = block * _BLOCK + torch.arange(_BLOCK, device=parts.device)
    inside = torch.where(ids < width, parts.gather(1, ids.clamp(max=width - 1)), 0).cumsum(-1)
    tokens = (block * _BLOCK + torch.searchsorted(inside, wanted - before, right=True)).squeeze(1)
    empty = totals == 0
    if shortcuts.is_clear(empty):
        return tokens
    return torch.where(empty, probabilities.argmax(-1), tokens)


def _block_sums(parts: torch.Tensor) -> torch.Tensor:
    """Sums of every ``_BLOCK`` neighbours, int64 ``[R, ceil(V / _BLOCK)]``."""
    n_blocks = parts.shape[1] // _BLOCK
    whole = n_blocks * _BLOCK
    sums: torch.Tensor = parts[:, :whole].view(len(parts), n_blocks, _BLOCK).sum(-1)
    if whole == parts.shape[1]:
        return sums
    return torch.cat([sums, parts[:, whole:].sum(-1, keepdim=True)], 1)


def _upper(x: torch.Tensor) -> torch.Tensor:
    return (x >> 32) & _LOW_32
