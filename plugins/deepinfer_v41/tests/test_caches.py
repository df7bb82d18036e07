"""The four cache types: sizes, formats, and what a round trip through them does (``spec/model.md`` 4, 7.16, 7.21)."""

from __future__ import annotations

import pytest
import torch
from dense_reference import qdq_q4mx, qdq_q4nv, qdq_q8
from released_config import RELEASED
from v41_models import cpu_backend

from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_v41.caches import cache_specs, main_kv, swa_ring
from deepinfer_v41.config import V41Config

REAL = V41Config.from_dict(RELEASED)


def spec_of(name: str, **options: object) -> CacheSpec:
    return next(s for s in cache_specs(REAL, **options) if s.name == name)


def test_released_block_is_113920_bytes_and_its_stride_114048():
    backend, specs = cpu_backend(), cache_specs(REAL)
    assert sum(lay.entries * (288 + 68) for lay in spec_of("main").layers) == 113_920
    assert backend.unit_bytes(specs, "main") == 114_048


def test_released_slot_sizes():
    backend, specs = cpu_backend(), cache_specs(REAL)
    assert swa_ring.ring_length(REAL) == 134
    assert [lay.entries for lay in spec_of("swa").layers] == [134] * 43
    assert [(lay.layer, lay.entries) for lay in spec_of("draft").layers] == [(40, 5)]
    assert len(spec_of("swa", drafts=False).layers) == 40
    assert [(lay.layer, lay.entries) for lay in spec_of("state").layers] == [(2, 7), (8, 7), (14, 7)]
    assert backend.unit_bytes(specs, "swa") >= 3_042_336
    assert backend.unit_bytes(specs, "state") >= 86_016


def test_owner_layers_and_entries_of_the_paged_caches():
    for name in ("main", "index"):
        assert [(lay.layer, lay.entries, lay.ratio) for lay in spec_of(name).layers] == [
            (2, 64, 2),
            (8, 64, 2),
            (14, 64, 2),
            (20, 128, 1),
        ]


def test_formats_follow_the_checkpoint_and_the_mode():
    assert {s.name: s.layers[0].format for s in cache_specs(REAL)} == {
        "main": "v41_fp4",
        "index": "index_fp4",
        "swa": "v41",
        "state": "f32",
        "draft": "v41",
    }
    assert {s.layers[0].format for s in cache_specs(REAL, quantised=False)} == {"f32"}
    fp8 = V41Config.from_dict({**RELEASED, "text_config": {**RELEASED["text_config"], "use_fp4_sparse_kv": False}})
    assert main_kv.entry_format(fp8, quantised=True) == "v41"


FORMATS = [("swa", "v41", qdq_q8), ("main", "v41_fp4", qdq_q4nv), ("index", "index_fp4", qdq_q4mx)]


def round_trip(pool: str, form: str, values: torch.Tensor) -> torch.Tensor:
    backend = cpu_backend()
    spec = CacheSpec(pool, pool, [CacheLayer(0, 16, form, values.shape[1])])
    caches = backend.alloc_caches([spec], {pool: 3})
    view = caches.view(pool, 0)
    backend.cache.store(values, view, torch.arange(16, 16 + len(values), dtype=torch.int32))
    found = backend.cache.load_segments(
        view, torch.tensor([[1, 0, len(values), 0]], dtype=torch.int32), len(values), dtype=torch.float32
    )
    return found if isinstance(found, torch.Tensor) else found.values


@pytest.mark.parametrize(("pool", "form", "qdq"), FORMATS)
def test_entries_are_rounded_as_the_scalar_reference_does(pool, form, qdq):
    values = torch.randn(16, 128, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, 16)[:, None]
    assert torch.equal(round_trip(pool, form, values), qdq(values))


@pytest.mark.parametrize(("pool", "form", "qdq"), FORMATS[::2])
def test_second_round_trip_changes_nothing_with_power_of_two_scales(pool, form, qdq):
    values = torch.randn(16, 128, generator=torch.Generator().manual_seed(2))
    once = round_trip(pool, form, values)
    assert torch.equal(round_trip(pool, form, once), once)


@pytest.mark.parametrize(("pool", "form", "qdq"), FORMATS)
def test_all_zero_entries_come_back_as_zeros(pool, form, qdq):
    zeros = torch.zeros(4, 128)
    assert torch.equal(round_trip(pool, form, zeros), zeros)
