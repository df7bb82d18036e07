"""What the sampling ops give row by row, whole vocabularies included (``spec/sampling.md`` 2.2 to 2.5).

Beside the tokens, how near a row is to giving another one: the last bit of a probability may decide it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from deepinfer_core.conformance.reference.sampling import GREEDY_BELOW, mixed

F64 = npt.NDArray[np.float64]

MASK64 = (1 << 64) - 1
G = 0x9E3779B97F4A7C15
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def unmix(h: int) -> int:
    """The z with ``mixed(z) == h``: the hash is one to one, so a test may ask for any value of it."""

    def unshift(x: int, by: int) -> int:
        y = x
        for _ in range(64 // by + 1):
            y = x ^ y >> by
        return y

    z = unshift(h, 31) * pow(_M2, -1, 1 << 64) & MASK64
    z = unshift(z, 27) * pow(_M1, -1, 1 << 64) & MASK64
    return (unshift(z, 30) - G) & MASK64


def seed_of_key(h: int, position: int, case: int) -> int:
    """The seed whose key at ``position`` is ``h`` (cases 0 to 2)."""
    s = (3 * position + case) * G & MASK64
    return (unmix(h) - (s ^ (s << 13 & MASK64))) & MASK64


def accept_key(seed: int, position: int) -> int:
    return mixed(seed & MASK64 ^ ((3 * position + 2) * G & MASK64))


def seed_of_accept_key(h: int, position: int) -> int:
    return unmix(h) ^ ((3 * position + 2) * G & MASK64)


def uniform(h: int) -> float:
    return (h >> 11) * 2.0**-53


def weights(probabilities: Sequence[float] | npt.NDArray[np.float32]) -> list[int]:
    """``floor(p * 2^31)`` of fp32 probabilities; NaN weighs nothing."""
    p = np.nan_to_num(np.asarray(probabilities, np.float32).astype(np.float64), nan=0.0)
    return [int(w) for w in np.floor(p * 2.0**31)]


def draw(w: Sequence[int], h: int) -> tuple[int, float]:
    """Token of the canonical integer draw, and how far r is from the next boundary, as a share of the total.

    Without any weight there is nothing to draw: -1.
    """
    sums = np.cumsum(np.asarray(w, np.int64))
    total = int(sums[-1])
    if not total:
        return -1, 1.0
    r = h * total >> 64
    token = int(np.searchsorted(sums, r, side="right"))
    below, above = int(sums[token - 1]) if token else 0, int(sums[token])
    low = r - below if below else total  # a token before the first, or behind the last that has a weight, is no risk
    high = above - r if above < total else total
    return token, min(low, high) / total


def logprobs(
    logits: npt.NDArray[np.float32], temperature: float, top_p: float, top_k: int, min_p: float | None
) -> tuple[F64, F64, npt.NDArray[np.bool_]]:
    """(logits over the temperature fp64, exclusive mass of each token in rank order, kept) of one row.

    Masses are by token id. Steps 8 to 11: the fp32 division is part of the definition, because it can make ties.
    """
    inverse = np.float32(1.0) / np.float32(1.0 if temperature < GREEDY_BELOW else temperature)
    scaled = (logits * inverse).astype(np.float64)
    alive = scaled > -np.inf
    p = _softmax(scaled, alive)
    if min_p is not None:
        alive &= p >= min_p * p.max()
        p = _softmax(scaled, alive)
    order = sorted(range(len(scaled)), key=lambda v: (-scaled[v] if alive[v] else math.inf, v))
    before, mass = np.zeros(len(scaled)), 0.0
    kept = np.zeros(len(scaled), bool)
    for rank, v in enumerate(order):
        before[v] = mass
        mass += p[v]
        few = top_k < 1 or rank < top_k
        kept[v] = alive[v] and before[v] <= top_p and few and (rank == 0 or temperature >= GREEDY_BELOW)
    return scaled, before, kept


def log_softmax(scaled: F64, kept: npt.NDArray[np.bool_]) -> F64:
    """Log-probabilities among the kept tokens, -inf elsewhere."""
    out = np.full(len(scaled), -np.inf)
    top = scaled[kept].max()
    out[kept] = scaled[kept] - top - np.log(np.exp(scaled[kept] - top).sum())
    return out


def _softmax(scaled: F64, alive: npt.NDArray[np.bool_]) -> F64:
    return np.exp(log_softmax(scaled, alive))


def allowed(words: Sequence[int], token: int) -> bool:
    """Bit of a token in a row of a grammar mask: least significant bit first (``spec/sampling.md`` 3.4)."""
    return bool(words[token // 32] >> token % 32 & 1)
