"""Sampling written plainly: Python integers for the hash and the draw, double precision for everything else.

Follows the order of the sampling pipeline step by step (``spec/sampling.md`` 2.2 to 2.5), one row at a time, over small
vocabularies. Nothing here knows how a sampler does it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_WORD = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
FRESH, RESIDUAL, COUPLED = 0, 1, 3
GREEDY_BELOW = 1e-5


def mixed(z: int) -> int:
    """The 64-bit finaliser of 2.4."""
    z = (z + _GAMMA) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return z ^ (z >> 31)


def key(seed: int, position: int, case: int = FRESH) -> int:
    """The random number of a draw."""
    if case > 2:
        return key(mixed((seed ^ case) & _WORD), position)
    shifted = ((3 * position + case) * _GAMMA) & _WORD
    return mixed((seed + (shifted ^ ((shifted << 13) & _WORD))) & _WORD)


def canonical_draw(probabilities: Sequence[float], number: int) -> int:
    """The token that ``number`` picks: the first whose running sum of integer weights exceeds the share (2.5)."""
    weights = [int(p * 2**31) for p in probabilities]
    total = sum(weights)
    if total == 0:
        return max(range(len(weights)), key=lambda token: (probabilities[token], -token))
    share = (number * total) >> 64
    running = 0
    for token, weight in enumerate(weights):
        running += weight
        if running > share:
            return token
    raise ValueError("the share lies below the total")


def ranking(logits: Sequence[float]) -> list[int]:
    """Ids from the best to the worst; equal logits (+0 and -0 too) by the lower id."""
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))


def survivors(
    logits: Sequence[float],
    *,
    temperature: float = 1.0,
    min_p: float = 0.0,
    top_p: float = 1.0,
    top_k: int = -1,
) -> list[int]:
    """Ids that min-p, then top-p, then top-k leave, in rank order. Masked tokens (-inf) are never among them."""
    best = max(logits)
    mass = [math.exp((value - best) / temperature) for value in logits]
    order = [token for token in ranking(logits) if mass[token] > 0 and mass[token] >= min_p]
    total, before, kept = math.fsum(mass[token] for token in order), 0.0, []
    for token in order:
        if before > top_p * total and top_p < 1.0:
            break
        kept.append(token)
        before += mass[token]
    return kept if top_k < 0 else kept[:top_k]


def distribution(logits: Sequence[float], *, temperature: float = 1.0, **filters: float) -> list[float]:
    """Probability of each token after temperature and filters; all mass on the best one for a greedy request."""
    if temperature < GREEDY_BELOW:
        best = ranking(logits)[0]
        return [float(token == best) for token in range(len(logits))]
    kept = survivors(logits, temperature=temperature, **filters)  # type: ignore[arg-type]
    best_value = max(logits)
    mass = [0.0] * len(logits)
    for token in kept:
        mass[token] = math.exp((logits[token] - best_value) / temperature)
    total = math.fsum(mass)
    return [value / total for value in mass]


def penalised(
    logits: Sequence[float],
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
) -> list[float]:
    """Logits after the penalties of step 5: repetition counts prompt and output, the others the output alone."""
    changed = []
    for token, value in enumerate(logits):
        count = list(output).count(token)
        if count or token in prompt:
            value = value / repetition if value > 0 else value * repetition
        changed.append(value - frequency * count - (presence if count else 0.0))
    return changed


def words(allowed: Sequence[int], vocab_size: int) -> list[int]:
    """A grammar mask of the contract: signed 32-bit words, least significant bit first."""
    bits = [0] * -(-vocab_size // 32)
    for token in allowed:
        bits[token // 32] |= 1 << (token % 32)
    return [word - 2**32 if word >= 2**31 else word for word in bits]
