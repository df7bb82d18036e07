"""Which tokens of a row survive min-p, top-p and top-k, in this order (``spec/sampling.md`` 2.2, steps 8 to 12).

Probability mass is counted in fixed point: ``floor(exp(y) * 2**44)``, with ``y`` the scaled logit relative to the best
token's. Integer sums have one value whatever the order, the number of threads or the shape of the batch, which no
floating-point sum can promise; the error is below ``V * 2**-44`` of the best token's mass.
"""

from __future__ import annotations

from typing import Final

import torch
from attrs import frozen

from deepinfer_samplers import shortcuts
from deepinfer_samplers.ranking import beyond, highest

MASS_BITS: Final = 44
MAX_VOCAB: Final = 2**18
"""Widest row whose total mass fits into an int64 with a bit to spare."""
MASS_ONE: Final = float(2**MASS_BITS)
_CANDIDATES: Final = (1024, 16384)
"""Tokens of a row four times as wide that are sorted at first; more of them if the survivors turn out to be more, and
all if that can only be known by waiting for a device."""
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
    """int64 ``[r]``, ``floor(top_p * 2**31)``."""
    top_k: torch.Tensor
    """int64 ``[r]``, 1 up to the vocabulary size, which is no limit."""

    def select(self, rows: torch.Tensor) -> Filters:
        """The parameters of some rows, all of which need an order."""
        min_p = None if self.min_p is None else self.min_p[rows]
        every = torch.arange(len(rows), device=rows.device)
        return Filters(self.temperature[rows], min_p, every, self.top_p[rows], self.top_k[rows])


@frozen
class Distribution:
    """The processed distribution of some rows."""

    scaled: torch.Tensor
    """f32 ``[r, V]``: logit over temperature relative to the best token's, before the filters."""
    dropped: torch.Tensor | None
    """bool ``[r, V]``: filtered out; None if nothing was."""
    log_total: torch.Tensor
    """f32 ``[r]``: log of the sum of ``exp(scaled)`` over the survivors."""
    probabilities: torch.Tensor
    """f32 ``[r, V]``, summing to 1; exactly 0 where filtered out."""

    def logprobs(self, tokens: torch.Tensor) -> torch.Tensor:
        """Log-probability of one token of each row: int64 ``[r]`` -> f32 ``[r]``, -inf if filtered out."""
        column = tokens.unsqueeze(1)
        values = self.scaled.gather(1, column).squeeze(1) - self.log_total
        if self.dropped is not None:
            values.masked_fill_(self.dropped.gather(1, column).squeeze(1), float("-inf"))
        return values


def process(logits: torch.Tensor, peaks: torch.Tensor, filters: Filters) -> Distribution:
    """Scale and filter rows.

    :param logits: f32 ``[r, V]`` without NaN or +inf; -inf marks masked tokens.
    :param peaks: f32 ``[r]``, the highest logit of each row, finite.
    """
    scaled = _scale(logits, peaks, filters.temperature)
    relative = scaled.exp()
    dropped = None
    if filters.min_p is not None:
        dropped = shortcuts.below(relative, filters.min_p.unsqueeze(1))
        shortcuts.zero(relative, dropped)
    masses = mass(relative)
    total = masses.sum(-1)
    if filters.ordered is not None:
        rows = filters.ordered
        if len(rows) == len(logits):
            outside, total = cut(logits, peaks, total, filters)
        else:
            outside = torch.zeros_like(logits, dtype=torch.bool)
            outside[rows], total[rows] = cut(logits[rows], peaks[rows], total[rows], filters.select(rows))
        shortcuts.zero(relative, outside)
        dropped = outside if dropped is None else dropped | outside
    share = total.to(torch.float32) / MASS_ONE
    relative /= share.unsqueeze(1)
    return Distribution(scaled, dropped, share.log(), relative)


def mass(relative: torch.Tensor) -> torch.Tensor:
    """Fixed-point mass of each token, int64; ``relative`` f32 in [0, 1]."""
    return (relative * MASS_ONE).to(torch.int64)


def cut(
    logits: torch.Tensor, peaks: torch.Tensor, total: torch.Tensor, filters: Filters
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens that top-p, then top-k drop, bool ``[m, V]``, and the mass that is left, int64 ``[m]``.

    A token falls to top-p if the mass strictly before it exceeds ``top_p`` of the whole, so the best one always stays
    and mass that equals ``top_p`` admits one more. The order is that of the logits before scaling, which does not
    merge neighbours.

    :param total: int64 ``[m]``, mass of each row after min-p.
    """
    # floor(total * top_p / 2**31) from two halves; total < 2**62 and top_p <= 2**31
    limit = (total >> _FRACTION_BITS) * filters.top_p
    limit += ((total & _FRACTION_MASK) * filters.top_p) >> _FRACTION_BITS
    width = logits.shape[-1]
    fewer = [count for count in _CANDIDATES if 4 * count <= width] if shortcuts.on_host(logits) else []
    for count in (*fewer, width):
        values = highest(logits, count)
        relative = _scale(values, peaks, filters.temperature).exp_()
        if filters.min_p is not None:
            relative.masked_fill_(relative < filters.min_p.unsqueeze(1), 0.0)
        inclusive = mass(relative).cumsum(-1)
        admitted = torch.searchsorted(inclusive, limit.unsqueeze(1), right=True).squeeze(1) + 1
        kept = torch.minimum(admitted.clamp_(max=count), filters.top_k)
        if count == width or shortcuts.is_full(kept < count):
            break
    return beyond(logits, values, kept), inclusive.gather(1, kept.unsqueeze(1) - 1).squeeze(1)


def _scale(logits: torch.Tensor, peaks: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    # Subtracting before dividing keeps the best token at exactly 0, and -inf never meets a product with 0.
    scaled = logits - peaks.unsqueeze(1)
    scaled /= temperature.unsqueeze(1)
    return scaled
