"""Consecutive primes from a starting point: the bucket counts of the Engram hash (spec/model.md 2.3)."""

from __future__ import annotations

import math

import numpy as np


def primes_from(start: int, count: int) -> list[int]:
    """The first ``count`` primes that are at least ``start``, by a segmented sieve (numpy, no big table)."""
    found: list[int] = []
    low = max(start, 2)
    # The mean gap near `low` is ln(low); a few segments of generous length cover any run of small counts.
    span = max(256, int(4 * count * math.log(low + 10)))
    while len(found) < count:
        found.extend(_segment(low, low + span)[: count - len(found)])
        low += span
    return found


def _segment(low: int, high: int) -> list[int]:
    """Primes in ``[low, high)``; ``low`` at least 2."""
    is_prime = np.ones(high - low, dtype=bool)
    for prime in _small_primes(math.isqrt(high - 1)):
        first = max(prime * prime, -(-low // prime) * prime)
        is_prime[first - low :: prime] = False
    return [low + int(offset) for offset in np.flatnonzero(is_prime)]


def _small_primes(limit: int) -> list[int]:
    is_prime = np.ones(limit + 1, dtype=bool)
    is_prime[:2] = False
    for number in range(2, math.isqrt(limit) + 1):
        if is_prime[number]:
            is_prime[number * number :: number] = False
    return [int(prime) for prime in np.flatnonzero(is_prime)]


def engram_primes(vocab_size: int, n_layers: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """Bucket count of each column, ``[n_layers][columns]``, columns ordered n-gram order major, head minor.

    The rule restarts its search at ``vocab_size`` for each layer and order and skips primes already taken. All
    primes below the last one found are taken by then, so the result is simply a run of consecutive primes.
    """
    run = primes_from(vocab_size, n_layers * columns)
    return tuple(tuple(run[layer * columns : (layer + 1) * columns]) for layer in range(n_layers))
