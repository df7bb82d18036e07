"""Features that a backend may claim, apart from those that have a file of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.reference import sampling
from deepinfer_core.conformance.repeats import compare_bits
from deepinfer_core.types import CacheLayer, CacheSpec

RAMP = (torch.arange(32) - 16) / 8
RAMP_DATA = "ffefeededdccab991022435465667677"
"""Codes of the ramp in E2M1 with E4M3 scales 2b and 2a, groups of 16 (``spec/kernels.md`` 1.1)."""


@pytest.mark.needs("feature:fp4_cache", "kv:v41_fp4")
@pytest.mark.op("cache.store", "cache.alloc", "cache.view")
def test_fp4_cache_has_rows_of_288_bytes(backend: Any, device: torch.device) -> None:
    spec = [CacheSpec("main", "main", [CacheLayer(0, 64, "v41_fp4", 512)])]
    view = backend.ops["cache.view"](backend.ops["cache.alloc"](spec, {"main": 2}), "main", 0)
    require_equal(view.tensor.shape[-1], 288, "a row of 512 values has another number of bytes", op="cache.alloc")
    require_equal(view.tensor.dtype, torch.uint8, "rows are no bytes", op="cache.alloc")
    backend.ops["cache.store"](RAMP.repeat(1, 16).bfloat16().to(device), view, torch.tensor([70]).int().to(device))
    row = view.tensor[1, 6].cpu().flatten()
    require_equal(bytes(row[256:258].tolist()).hex(), "2b2a", "the scales of the ramp differ", op="cache.store")
    require_equal(bytes(row[:16].tolist()).hex(), RAMP_DATA, "the codes of the ramp differ", op="cache.store")


@pytest.mark.needs("feature:deterministic_sampling")
@pytest.mark.op("sample.draw")
def test_draws_are_those_of_integer_arithmetic(backend: Any, device: torch.device) -> None:
    """Powers of two, whose logarithms lose nothing that counts: the draw is then exact on every device."""
    shares = [2.0**-power for power in (1, 2, 3, 4, 5, 6, 6)]
    seeds, positions = list(range(7, 71)), list(range(100, 164))
    logprobs = torch.tensor(shares).log().repeat(64, 1).to(device)
    numbers = (torch.tensor(seeds).to(device), torch.tensor(positions).to(device))
    got = backend.ops["sample.draw"](logprobs, *numbers).cpu().tolist()
    wanted = [
        sampling.canonical_draw(shares, sampling.key(seed, position))
        for seed, position in zip(seeds, positions, strict=True)
    ]
    require_equal(got, wanted, "the draws are not the canonical ones", op="sample.draw")


@pytest.mark.needs("feature:engram_host_storage", "op:engram.prepare", "op:engram.fetch")
@pytest.mark.op("engram.prepare", "engram.fetch")
def test_tables_may_stay_in_the_memory_of_the_host(backend: Any, device: torch.device) -> None:
    table = torch.arange(40 * 32).reshape(40, 32).float().bfloat16()
    rows = torch.tensor([[3, 39], [0, 3]])
    held = backend.ops["engram.prepare"](table)
    got = backend.ops["engram.fetch"](rows.to(device), held)
    require(got.device.type == device.type, "rows of a table on the host are not on the device", op="engram.fetch")
    compare_bits(
        table[rows].flatten(1), got.cpu().reshape(2, -1), "rows differ from those of the table", op="engram.fetch"
    )
