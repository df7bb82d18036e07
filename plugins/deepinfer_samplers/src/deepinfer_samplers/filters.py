"""Which tokens of a row survive min-p, top-p and top-k, in this order (``spec/sampling.md`` 2.2, steps 8 to 12).

Probability mass is counted in fixed point: ``floor(exp(y) * 2**44)``, with ``y`` the scaled logit relative to the best
token's. Integer sums have one value whatever the order, the number of threads or the shape of the batch, which no
floating-point sum can promise; the error is below ``V * 2**-44`` of the best token's mass.
"""

from __future__ import annotations

from typing import Final

import torch
from attrs import frozen

from deepinfer_samplers.ranking import key_ids, rank_keys, sort_keys

MASS_BITS: Final = 44
MAX_VOCAB: Final = 2**18
"""Widest row whose total mass fits into an int64 with a bit to spare."""
_MASS_ONE: Final = float(2**MASS_BITS)
_FRACTION_BITS: Final = 31
_FRACTION_MASK: Final = 2**_FRACTION_BITS - 1


@frozen
class Filters:
    """Parameters of ``r`` rows, on the device of their logits, and which of the filters any row needs."""

    temperature: torch.Tensor
    """f32 ``[r]``, at least 1e-5."""
    min_p: torch.Tensor | None
    """f32 ``[r]``, 0 = off; None when all are."""
    ordered: torch.Tensor | None
    """int64 ``[m]``, the rows that need an order: those with top-p or top-k. None when there are none."""
    top_p: torch.Tensor
    """int64 ``[m]``, ``floor(top_p * 2**31)``."""
    top_k: torch.Tensor
    """int64 ``[m]``, at least 1; a value of the vocabulary size or more is no limit."""


@frozen
class Distribution:
    """The processed distribution of some rows."""

    scaled: torch.Tensor
    """f32 ``[r, V]``: logit over temperature relative to the best token's; -inf where filtered out."""
    log_total: torch.Tensor
    """f32 ``[r]``: log of the sum of ``exp(scaled)``."""
    probabilities: torch.Tensor
    """f32 ``[r, V]``, summing to 1; exactly 0 where filtered out."""

    def logprobs(self, tokens: torch.Tensor) -> torch.Tensor:
        """Log-probability of one token of each row: int64 ``[r]`` -> f32 ``[r]``, -inf if filtered out."""
        return self.scaled.gather(1, tokens.unsqueeze(1)).squeeze(1) - self.log_total


def process(logits: torch.Tensor, peaks: torch.Tensor, filters: Filters) -> Distribution:
    """Scale and filter rows.

    :param logits: f32 ``[r, V]`` without NaN or +inf; -inf marks masked tokens.
    :param peaks: f32 ``[r]``, the highest logit of each row, finite.
    """
    # Subtracting before dividing keeps the best token at exactly 0, and -inf never meets a product with 0.
    scaled = logits - peaks.unsqueeze(1)
    scaled /= filters.temperature.unsqueeze(1)
    relative = scaled.exp()
    if filters.min_p is not None:
        _drop(relative < filters.min_p.unsqueeze(1), scaled, relative)
    if filters.ordered is not None:
        if len(filters.ordered) == len(logits):
            _drop(cut(logits, relative, filters.top_p, filters.top_k), scaled, relative)
        else:
            rows = filters.ordered
            dropped = torch.zeros_like(logits, dtype=torch.bool)
            dropped[rows] = cut(logits[rows], relative[rows], filters.top_p, filters.top_k)
            _drop(dropped, scaled, relative)
    total = mass(relative).sum(-1).to(torch.float32) / _MASS_ONE
    return Distribution(scaled, total.log(), relative / total.unsqueeze(1))


def mass(relative: torch.Tensor) -> torch.Tensor:
    """Fixed-point mass of each token, int64; ``relative`` f32 in [0, 1]."""
    return (relative * _MASS_ONE).to(torch.int64)


def cut(logits: torch.Tensor, relative: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Tokens that top-p, then top-k drop: bool ``[m, V]``.

    A token falls to top-p if the mass strictly before it exceeds ``top_p`` of the whole, so the best one always stays
    and mass that equals ``top_p`` admits one more. The order is that of the logits before scaling, which does not
    merge neighbours.
    """
    keys = rank_keys(logits)
    ordered = sort_keys(keys)
    masses = mass(relative.gather(1, key_ids(ordered)))
    inclusive = masses.cumsum(-1)
    total = inclusive[:, -1]
    # floor(total * top_p / 2**31) from two halves; total < 2**62 and top_p <= 2**31
    limit = (total >> _FRACTION_BITS) * top_p + (((total & _FRACTION_MASK) * top_p) >> _FRACTION_BITS)
    admitted = (inclusive - masses <= limit.unsqueeze(1)).sum(-1)  # a prefix: the sums do not fall
    last = torch.minimum(admitted, top_k).unsqueeze(1) - 1
    return keys > ordered.gather(1, last)


def _drop(dropped: torch.Tensor, scaled: torch.Tensor, relative: torch.Tensor) -> None:
    scaled.masked_fill_(dropped, float("-inf"))
    relative.masked_fill_(dropped, 0.0)
