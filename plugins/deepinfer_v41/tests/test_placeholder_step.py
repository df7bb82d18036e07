"""A rank without work feeds the placeholder: no cache byte outside the null units changes (``spec/engine.md`` 5.9)."""

from __future__ import annotations

import pytest
import torch
from v41_core_driver import core_config
from v41_tiny import prompt, tiny_driver, tiny_path

from deepinfer_contracts import StepKind
from deepinfer_native import placeholder_inputs


def units(caches):
    """All cache memory, one row of bytes for each unit."""
    return {pool: caches._matrix(pool).clone() for pool in ("main", "swa", "state")}


@pytest.mark.parametrize("variant", ["plain", "released"])
@pytest.mark.parametrize("kind", [StepKind.DECODE, StepKind.PREFILL])
def test_placeholder_step_writes_into_null_units_only(variant, kind):
    driver = tiny_driver(tiny_path(), variant)
    sequence = driver.open(prompt(60))
    driver.prefill(sequence, 60, 60)
    before = units(driver.caches)
    config = core_config(driver, 64, 64, 40)
    hidden = driver.model.forward(driver.backend.bind_inputs(placeholder_inputs(config, kind)), driver.caches)
    assert hidden.shape[0] == 1
    assert torch.isfinite(hidden).all()
    after = units(driver.caches)
    for pool, rows in before.items():
        assert rows[1:].any(), f"{pool}: the sequence before wrote nothing, so the test would see nothing"
        assert torch.equal(after[pool][1:], rows[1:]), pool
    assert any(not torch.equal(after[pool][0], rows[0]) for pool, rows in before.items()), "it ran without a store"
    driver.close(sequence)
