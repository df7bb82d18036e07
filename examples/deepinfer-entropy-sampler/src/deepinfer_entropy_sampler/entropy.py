"""Cap the entropy of each row by an exponent of its own.

Where the model is sure, its distribution is what it is, and a temperature only makes it worse. Where it is not, its long
tail is where answers go wrong. So a row p whose entropy is above the limit becomes p^b / sum(p^b) with the one b > 1 that
brings it to the limit: entropy falls as b grows, so halving an interval finds it. Rows below the limit stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from deepinfer_core.errors import InvalidParameter

if TYPE_CHECKING:
    from deepinfer_core.interfaces import Draw

Rows = npt.NDArray[np.float64]
MAX_EXPONENT = 2.0**20
"""Tokens that are equally likely stay so whatever the exponent: at this one only ties of the best are left."""
HALVINGS = 50


class EntropyCap:
    """The row sampler. One object serves all requests with the same ``max_bits``, so it keeps nothing of any."""

    def __init__(self, max_bits: Any) -> None:
        """``max_bits`` comes from a request, so it may be anything. Raises InvalidParameter."""
        is_number = isinstance(max_bits, (int, float)) and not isinstance(max_bits, bool)
        if not is_number or not 0 < max_bits <= 32:
            raise InvalidParameter(f"max_bits is {max_bits!r}", remedy="give a number above 0 and up to 32")
        self.max_bits = float(max_bits)

    def sample(self, logits: npt.NDArray[np.float32], draws: Sequence[Draw]) -> list[int]:
        """The token of each row.

        :param logits: ``[rows, vocabulary]``, divided by the temperature; -inf where a token is forbidden.
        :param draws: One for each row: the canonical draw, so that a seed gives the same tokens in any company.
        """
        rows = self.capped(logits)
        return [draw(row) for draw, row in zip(draws, rows, strict=True)]

    def capped(self, logits: npt.NDArray[np.float32]) -> Rows:
        """Probabilities ``[rows, vocabulary]`` of at most ``max_bits`` each, as far as ties allow."""
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        low = np.ones((len(logits), 1))
        above = entropy_bits(powered(shifted, low)) > self.max_bits
        high = np.where(above, MAX_EXPONENT, 1.0)
        for _ in range(HALVINGS):
            middle = np.sqrt(low * high)  # of the logarithms: exponents of interest are near 1
            above = entropy_bits(powered(shifted, middle)) > self.max_bits
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return powered(shifted, high)


def powered(shifted: Rows, exponent: Rows) -> Rows:
    """``p ** exponent``, normalised, from logits whose maximum is 0."""
    with np.errstate(invalid="ignore"):  # -inf stays -inf for every exponent above 0
        weights = np.exp(shifted * exponent)
    normalised: Rows = weights / weights.sum(axis=1, keepdims=True)
    return normalised


def entropy_bits(p: Rows) -> Rows:
    """Entropy of each row of ``p``, ``[rows, 1]``."""
    logs = np.log2(p, out=np.zeros_like(p), where=p > 0)
    bits: Rows = -(p * logs).sum(axis=1, keepdims=True)
    return bits
