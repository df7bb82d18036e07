"""Seeds of requests: from the engine's seed, and from that of the first sample (``spec/sampling.md`` 2.4)."""

from __future__ import annotations

import secrets

from deepinfer_core.parameters.sampling_params import SEED_MASK

_GOLDEN = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    """splitmix64 of ``z``, modulo 2**64."""
    z = (z + _GOLDEN) & SEED_MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & SEED_MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & SEED_MASK
    return z ^ (z >> 31)


def request_seed(base: int | None, index: int) -> int:
    """The seed of request ``index`` of a call: a hash of ``base`` and ``index``, or random without a base."""
    return secrets.randbits(64) if base is None else mix(base + index * _GOLDEN)


def sample_seed(seed: int, sample: int) -> int:
    """The seed of sample ``sample`` of a request with ``seed``; the first keeps it.

    The seed is mixed before the sample is added: requests with neighbouring seeds must not share those of samples.
    """
    return mix(mix(seed) + sample) if sample else seed
