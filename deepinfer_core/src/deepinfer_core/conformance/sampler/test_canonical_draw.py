"""``feature:deterministic_sampling``: the canonical integer draw, bit for bit (``spec/sampling.md`` 2.4, 2.5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.reference.sampling import canonical_draw, distribution, key
from deepinfer_core.conformance.sampler.steps import random_logits, step_inputs

pytestmark = [pytest.mark.level("core"), pytest.mark.needs("feature:deterministic_sampling")]
# (seed, position, token) for p = (.1, .2, .3, .4), from the table of 2.5; draws of case 0 only.
GOLDEN = [(0, 0, 3), (0, 1, 3), (1, 0, 2), (42, 1000, 3), (2**64 - 1, 131071, 2)]
KEYS = [
    (0, 0, 0, 0xE220A8397B1DCDAF),
    (0, 1, 0, 0xDADED652ADB02DA7),
    (1, 0, 0, 0x910A2DEC89025CC1),
    (42, 1000, 0, 0xBEB1F2D15A38E200),
    (42, 1000, 1, 0xB5CA489AA3178E55),
    (2**64 - 1, 131071, 0, 0x5642C7793445C86C),
    (42, 1000, 3, 0xC1C50ED1BAF80D56),
]


def test_reference_has_the_golden_keys() -> None:
    for seed, position, case, want in KEYS:
        require_equal(key(seed, position, case), want, "the kit's own hash is wrong", seed=seed)


def test_draws_are_the_golden_ones(bench: Any) -> None:
    row = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    seeds, positions, want = (list(column) for column in zip(*GOLDEN, strict=True))
    inputs = step_inputs(len(GOLDEN), seed=np.array(seeds, np.uint64), sample_pos=positions)
    got = bench(4).step(np.tile(row, (len(GOLDEN), 1)), inputs).tokens.tolist()
    require_equal(got, want, "a golden draw gives another token")


@pytest.mark.parametrize("vocab_size", [5, 64, 515])
def test_draws_are_those_of_the_reference(bench: Any, vocab_size: Any) -> None:
    """But where the share falls within rounding of a boundary, at most one draw in a thousand."""
    logits = random_logits(256, vocab_size, seed=vocab_size)
    seeds = np.arange(256, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    inputs = step_inputs(256, seed=seeds, sample_pos=np.arange(256) * 31)
    got = bench(vocab_size).step(logits, inputs).tokens.tolist()
    want = [
        canonical_draw(distribution(row.tolist()), key(int(seed), 31 * i))
        for i, (row, seed) in enumerate(zip(logits, seeds, strict=True))
    ]
    different = [i for i in range(256) if got[i] != want[i]]
    require(
        len(different) <= 1,
        "draws differ from those of the reference",
        rows=different[:8],
        got=[got[i] for i in different[:8]],
        expected=[want[i] for i in different[:8]],
    )
