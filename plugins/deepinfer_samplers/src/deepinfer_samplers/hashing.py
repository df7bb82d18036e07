"""The counter-based noise of every draw: a 64-bit hash of (seed, absolute position, case) (``spec/sampling.md`` 2.4).

No state is kept, so a draw does not depend on the batch, on earlier draws or on how a run was cut into steps. All
arithmetic is on unsigned 64-bit arrays, where it wraps around silently; scalars would warn.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

FRESH: Final = 0
"""Case of a token that is drawn from the target distribution."""
RESIDUAL: Final = 1
"""Case of a token that replaces a rejected draft."""
_ACCEPT: Final = 2
_FIRST_EXTRA_CASE: Final = 3

GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def mix(z: U64) -> U64:
    """The SplitMix64 finaliser over ``z + gamma``."""
    z = z + GAMMA
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return z ^ (z >> np.uint64(31))


def draw_keys(seeds: npt.ArrayLike, positions: npt.ArrayLike, case: int = FRESH) -> U64:
    """Noise of the draws of ``case`` at absolute ``positions``.

    :param seeds: u64 ``[N]``; int64 is taken as the same bits.
    :param positions: Absolute index of the token being produced, ``[N]``, not negative.
    :param case: 0 fresh, 1 residual; 3 and above are further independent streams (2 belongs to `accept_keys`).
    :returns: u64 ``[N]``.
    """
    seed = unsigned(seeds)
    if case >= _FIRST_EXTRA_CASE:  # 3 * pos + case would repeat the keys of the next position
        seed, case = mix(seed ^ np.uint64(case)), FRESH
    s = _counter(positions, case)
    return mix(seed + (s ^ (s << np.uint64(13))))


def accept_keys(seeds: npt.ArrayLike, positions: npt.ArrayLike) -> U64:
    """Noise that decides whether the draft at a position is accepted."""
    return mix(unsigned(seeds) ^ _counter(positions, _ACCEPT))


def uniform(keys: U64) -> npt.NDArray[np.float64]:
    """The upper 53 bits of each key as a number in ``[0, 1)``."""
    return (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53


def unsigned(values: npt.ArrayLike) -> U64:
    """``values`` as u64 of at least one dimension; signed integers keep their bits."""
    array = np.array(values, ndmin=1)
    return array.view(np.uint64) if array.dtype == np.int64 else array.astype(np.uint64)


def _counter(positions: npt.ArrayLike, case: int) -> U64:
    return (unsigned(positions) * np.uint64(3) + np.uint64(case)) * GAMMA
