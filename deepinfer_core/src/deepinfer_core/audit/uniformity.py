"""Uniformity of draws: the randomised probability integral transform, and the Kolmogorov-Smirnov test of it.

With tokens in the order of likelihood, a drawn token x has F(x-) and F(x): the mass below it, without and with its own.
If x was drawn from that distribution, then ``F(x) - v p(x)`` with v uniform in [0, 1) and independent of the draw is
uniform (Rosenblatt 1952; Brockwell 2007), whatever the distribution was. So draws of all positions and requests make
one sample, and whoever draws less often from the tail than is said, or more often, bends it. The statistic is the
largest distance between the sample's distribution function and the diagonal.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from attrs import frozen

from deepinfer_core.audit.draws import Draws
from deepinfer_core.errors import InvalidInputFile, LibraryMissing


@frozen
class Uniformity:
    """Result of the test."""

    count: int
    statistic: float
    """Largest distance, 0 to 1."""
    p_value: float
    """Chance of a distance as large as that, or larger, if the sampler is right."""
    level: float
    """The test fails below it: so often a right sampler fails."""
    location: float
    """Where the distance is, in [0, 1]: near 0 are the least likely tokens."""

    @property
    def holds(self) -> bool:
        return self.p_value >= self.level

    @property
    def smallest_distance(self) -> float:
        """About the smallest distance that fails, for so many draws (the tail bound 2 exp(-2 n d**2))."""
        return min(1.0, math.sqrt(math.log(2 / self.level) / (2 * self.count)))


def check_uniformity(draws: Draws, *, level: float, noise_seed: int = 0) -> Uniformity:
    """Test ``draws``.

    :param noise_seed: Of v. Another one gives another statistic of the same file.
    :raises InvalidInputFile: there is no draw.
    :raises LibraryMissing: scipy is not installed.
    """
    stats = _stats()
    if not draws.sum_smaller:
        reasons = ", ".join(f"{count} {reason}" for reason, count in draws.left_out.items())
        raise InvalidInputFile(
            "the results have no draw that could be audited",
            reason=f"tokens that were left out: {reasons}",
            remedy="generate with --sum-smaller, --logprobs and a temperature above 0",
            details={"left_out": dict(draws.left_out)},
        )
    own = np.exp(np.array(draws.logprobs, dtype=np.float64))
    inside = np.random.default_rng(noise_seed).random(len(own))
    # Recorded masses are fp32: they may exceed 1 by rounding.
    values = np.clip(np.array(draws.sum_smaller, dtype=np.float64) - inside * own, 0.0, 1.0)
    found = stats.kstest(values, "uniform")
    return Uniformity(len(values), float(found.statistic), float(found.pvalue), level, float(found.statistic_location))


def _stats() -> Any:
    try:
        from scipy import stats  # 40 MB, of use to audits only
    except ImportError as err:
        raise LibraryMissing(
            "an audit needs the package scipy",
            reason=str(err),
            remedy="pip install 'deepinfer-core[audit]'",
            details={"package": "scipy"},
        ) from err
    return stats
