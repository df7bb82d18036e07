"""The caches that the model asks for, and the hints that go with them (``deepinfer_cache_specs``)."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.model.making import fits

pytestmark = [pytest.mark.level("smoke"), pytest.mark.hook("deepinfer_cache_specs")]
POOLS = ("main", "index", "swa", "state")
UNITS = 3


def test_specs_are_well_formed(plan: Any) -> None:
    names = [spec.name for spec in plan.specs]
    require_equal(len(set(names)), len(names), "two caches have one name", names=names)
    for spec in plan.specs:
        require(spec.pool in POOLS, "unknown pool", cache=spec.name, got=spec.pool)
        require(len(spec.layers) > 0, "a cache of no layer", cache=spec.name)
        layers = [layer.layer for layer in spec.layers]
        require_equal(len(set(layers)), len(layers), "a layer is there twice", cache=spec.name)
        for layer in spec.layers:
            facts = {"cache": spec.name, "layer": layer.layer}
            require(layer.layer >= 0, "a layer below 0", **facts)
            require(layer.entries > 0, "a unit without entries", **facts, got=layer.entries)
            require(layer.width > 0, "an entry without values", **facts, got=layer.width)
            require(layer.ratio >= 1, "a ratio below 1", **facts, got=layer.ratio)


def test_blocks_hold_the_tokens_of_a_block(plan: Any) -> None:
    """Main and index pages share block ids: a unit of both covers ``block_size`` tokens."""
    for spec in plan.specs:
        require(
            fits(spec, plan.block_size), "entries * ratio is not the block size", cache=spec.name, size=plan.block_size
        )


def test_backend_has_memory_for_every_unit(plan: Any, part: Any) -> None:
    pools = dict.fromkeys(spec.pool for spec in plan.specs)
    sizes = {pool: part.backend.unit_bytes(plan.specs, pool) for pool in pools}
    for pool, size in sizes.items():
        require(isinstance(size, int) and size > 0, "a unit has no bytes", pool=pool, got=size)
    caches = part.backend.alloc_caches(plan.specs, dict.fromkeys(pools, UNITS))
    shared = [pool for pool in pools if pool != "index" or "main" not in pools]  # a block counts both
    least = UNITS * sum(sizes[pool] for pool in shared)
    require(caches.nbytes >= least, "less memory than units times their size", got=caches.nbytes, expected=least)
    for spec in plan.specs:
        for layer in spec.layers:
            view = caches.view(spec.name, layer.layer)
            require(view is not None, "no view of a cache", cache=spec.name, layer=layer.layer)
            tensor = getattr(view, "tensor", view)
            require_equal(len(tensor), UNITS, "a view has another number of units", cache=spec.name, layer=layer.layer)


def test_formats_are_those_that_the_match_asked_for(plan: Any, part: Any) -> None:
    """What is allocated was checked against the backend before."""
    can = part.backend.capabilities
    known = set(can.kv_formats) | set(can.index_formats) | {"f32"} | set(plan.match.requirements.formats)
    for spec in plan.specs:
        if spec.pool != "state":
            for layer in spec.layers:
                require(
                    layer.format in known or not can.kv_formats,
                    "a cache format that neither the match nor the backend names",
                    cache=spec.name,
                    got=layer.format,
                )


@pytest.mark.hook("deepinfer_scheduler_hints")
def test_hints_fit_the_caches(plan: Any) -> None:
    hints, pools = plan.hints, {spec.pool for spec in plan.specs}
    ratios = [*hints.ratios_sparse, *hints.ratios_dense]
    require_equal(hints.window > 0, "swa" in pools, "a window and a cache of pool swa go together", window=hints.window)
    require_equal(bool(ratios), bool(pools & {"main", "index"}), "ratios and paged caches go together", ratios=ratios)
    require_equal(hints.state_slots, "state" in pools, "state_slots and a cache of pool state go together")
    for ratio in ratios:
        require(plan.block_size % ratio == 0, "a block does not hold whole groups", ratio=ratio, size=plan.block_size)
    if hints.window:
        ring = hints.swa_ring or hints.window
        least = hints.window + hints.backtrack - 1
        require(ring >= least, "the ring is shorter than window and backtrack", got=ring, expected=f"at least {least}")
    if hints.ngram:
        require(hints.ngram_table is not None, "n-grams without a table of compressed ids")
        require_equal(hints.inputs, "InputMetadataV41", "n-grams come with the input record InputMetadataV41")
    if hints.max_model_len is not None:
        require(hints.max_model_len >= 1, "max_model_len is no length", got=hints.max_model_len)
