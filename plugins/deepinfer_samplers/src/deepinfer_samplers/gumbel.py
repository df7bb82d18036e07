"""Coupled draws: the best token after Gumbel noise that belongs to (seed, position, token) (``spec/sampling.md`` 2.7).

A drafter that adds the same noise to its own log-probabilities mostly chooses the token that the model will choose, and
what the model chooses does not depend on drafts at all. The noise is computed in float64: in float32 the largest of the
2**24 values would round to infinity.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from deepinfer_samplers import shortcuts
from deepinfer_samplers.filters import Distribution
from deepinfer_samplers.hashing import GAMMA, MIX_1, MIX_2, draw_keys, mix

NOISE_CASE: Final = 3
"""Case of `hashing.draw_keys` that keys the noise of a position."""
_HASH_BITS: Final = 24


def noise_keys(seeds: npt.ArrayLike, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Bits of the key of each position's noise, ``[N]``."""
    return draw_keys(seeds, positions, NOISE_CASE).view(np.int64)


def coupled(distribution: Distribution, keys: torch.Tensor) -> torch.Tensor:
    """The survivor of each row with the highest log-probability plus noise, the lowest id on ties.

    :param keys: int64 ``[r]``, of `noise_keys`.
    :returns: int64 ``[r]``.
    """
    scaled, dropped = distribution.scaled, distribution.dropped
    values = scaled - distribution.log_total.unsqueeze(1)
    if dropped is not None:
        values.masked_fill_(dropped, float("-inf"))
    if shortcuts.on_host(values):
        return _on_host(values, keys)
    tokens = torch.arange(values.shape[1], device=values.device)
    hashes = _mix(keys.unsqueeze(1) + tokens * _signed(GAMMA))
    uniform = ((hashes >> (64 - _HASH_BITS)) & (2**_HASH_BITS - 1)).double().add_(0.5).mul_(2.0**-_HASH_BITS)
    noise = uniform.log_().neg_().log_().neg_()
    return noise.add_(values).argmax(-1)


def _on_host(values: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The same for survivors only, in numpy, which has unsigned integers."""
    array, seeds = shortcuts.as_numpy(values), shortcuts.as_numpy(keys).view(np.uint64)
    rows, tokens = np.nonzero(array > -np.inf)
    hashes = mix(seeds[rows] + tokens.astype(np.uint64) * GAMMA)
    uniform = ((hashes >> np.uint64(64 - _HASH_BITS)).astype(np.float64) + 0.5) * 2.0**-_HASH_BITS
    scores = np.full(array.shape, -np.inf)
    scores[rows, tokens] = array[rows, tokens] - np.log(-np.log(uniform))
    return torch.from_numpy(scores.argmax(-1))


def _mix(z: torch.Tensor) -> torch.Tensor:
    """`hashing.mix` of int64 bit patterns, which wrap around as unsigned ones do."""
    z = z + _signed(GAMMA)
    z = (z ^ _shifted(z, 30)) * _signed(MIX_1)
    z = (z ^ _shifted(z, 27)) * _signed(MIX_2)
    return z ^ _shifted(z, 31)


def _shifted(z: torch.Tensor, count: int) -> torch.Tensor:
    return (z >> count) & (2 ** (64 - count) - 1)


def _signed(value: np.uint64) -> int:
    return int(value.view(np.int64))
