"""Whether observed tokens follow a distribution: the chi-square test, written plainly.

The limit is passed by chance once in a million runs; the seeds of the kit are fixed, so that a sampler that depends on
nothing else gives the same verdict every time.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_core.conformance.failures import fail, require

_Z = 4.753  # of a standard normal variable: exceeded with probability 1e-6
_LEAST_EXPECTED = 5.0


def require_distribution(tokens: Sequence[int], probabilities: Sequence[float], what: str, **facts: object) -> None:
    """Fail unless ``tokens`` look drawn from ``probabilities``; a token of probability 0 fails at once."""
    __tracebackhide__ = True
    counts = [0] * len(probabilities)
    for token in tokens:
        if not 0 <= token < len(counts):
            fail(f"{what}: token {token} is outside the vocabulary", **facts)
        counts[token] += 1
    for token, (count, p) in enumerate(zip(counts, probabilities, strict=True)):
        require(p > 0 or not count, f"{what}: token {token} has probability 0 and came {count} times", **facts)
    statistic, cells = chi_square(counts, probabilities)
    if cells < 2:
        return
    limit = chi_square_limit(cells - 1)
    shares = [round(count / len(tokens), 4) for count in counts]
    require(
        statistic <= limit,
        f"{what}: the tokens do not follow the distribution",
        **facts,
        got=shares,
        expected=[round(p, 4) for p in probabilities],
        statistic=f"chi-square {statistic:.1f} over {len(tokens)} tokens",
        limit=f"{limit:.1f} ({cells - 1} degrees of freedom, 1e-6)",
    )


def chi_square(counts: Sequence[int], probabilities: Sequence[float]) -> tuple[float, int]:
    """The statistic and its number of cells; cells with few expected counts are taken together."""
    total = sum(counts)
    cells: list[tuple[float, float]] = []
    rare_count = rare_expected = 0.0
    for count, p in zip(counts, probabilities, strict=True):
        if p * total >= _LEAST_EXPECTED:
            cells.append((count, p * total))
        else:
            rare_count += count
            rare_expected += p * total
    if rare_expected >= _LEAST_EXPECTED:
        cells.append((rare_count, rare_expected))
    return sum((count - expected) ** 2 / expected for count, expected in cells), len(cells)


def chi_square_limit(freedom: int) -> float:
    """What a chi-square variable exceeds once in a million (Wilson and Hilferty's approximation)."""
    spread = 2.0 / (9.0 * freedom)
    return float(freedom * (1.0 - spread + _Z * spread**0.5) ** 3)
