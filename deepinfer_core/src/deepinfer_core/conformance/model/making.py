"""Makes models of the plugin under test the way an engine does: card, match, backend, caches, hints, model, weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from deepinfer_core.config import EngineConfig
from deepinfer_core.conformance.model.rig import NULL, Rig
from deepinfer_core.conformance.part import Part, settings
from deepinfer_core.errors import ConfigError
from deepinfer_core.types import CacheSpec, ModelCard, ModelMatch, SchedulerHints

MAX_LEN = 256
BLOCKS, SLOTS = 80, 14
SMALL_BLOCKS = (8, 16, 32, 64)
"""Tried for the block size: small ones make short texts cross blocks."""


@frozen
class Plan:
    """What is known before a model is made."""

    config: EngineConfig
    match: ModelMatch
    specs: tuple[CacheSpec, ...]
    hints: SchedulerHints
    block_size: int
    max_len: int


def card_of(checkpoint: Path) -> ModelCard:
    """``config.json`` of a checkpoint, parsed."""
    from deepinfer_core.assembly.model_card import read_model_card

    return read_model_card(str(checkpoint))


def plan_of(part: Part, card: ModelCard, *, backend: Any = None, **given: Any) -> Plan:
    """The settings with the smallest blocks that the model takes, and what its hooks say of them."""
    backend = part.backend if backend is None else backend
    match = part.hooks.model_match(part.owner, card)
    if match is None:
        raise ConfigError(f"deepinfer_model_match does not take {card.path}", remedy="give another --checkpoint")
    backend_record = part.manager.require("backend", part.backend_name)
    first = settings(model=str(card.path), **given)
    hints = part.hooks.scheduler_hints([part.owner, backend_record], match, backend, first)
    max_len = min(MAX_LEN, hints.max_model_len or MAX_LEN)
    for block_size in (*(size for size in SMALL_BLOCKS if size < hints.block_size), None):
        config = settings(model=str(card.path), max_model_len=max_len, block_size=block_size, **given)
        try:
            specs = part.hooks.cache_specs(part.owner, match, config)
        except ConfigError:
            if block_size is None:
                raise
            continue
        size = block_size or hints.block_size
        if block_size is None or all(fits(spec, size) for spec in specs):
            break
    hints = part.hooks.scheduler_hints([part.owner, backend_record], match, backend, config)
    return Plan(config, match, tuple(specs), hints, size, max_len)


def fits(spec: CacheSpec, block_size: int) -> bool:
    """Whether a paged cache keeps a block of that many tokens in a unit."""
    return spec.pool not in ("main", "index") or all(la.entries * la.ratio == block_size for la in spec.layers)


def make_model(part: Part, plan: Plan, backend: Any = None) -> Any:
    """The model without weights."""
    backend = part.backend if backend is None else backend
    return part.hooks.model_create(part.owner, plan.match, plan.config, backend)


def make_rig(
    part: Part, checkpoint: Path, *, wrap: Callable[[Any, ModelMatch], Any] | None = None, **given: Any
) -> Rig:
    """A loaded model over poisoned caches. ``wrap``: what the model gets in place of the backend."""
    card = card_of(checkpoint)
    plan = plan_of(part, card, **given)
    backend = part.backend if wrap is None else wrap(part.backend, plan.match)
    model = make_model(part, plan, backend)
    model.load(checkpoint)
    return rig_of(part, plan, model, backend)


def rig_of(part: Part, plan: Plan, model: Any, backend: Any) -> Rig:
    counts = {"main": BLOCKS, "index": BLOCKS, "swa": SLOTS, "state": SLOTS}
    units = {pool: counts[pool] for pool in dict.fromkeys(spec.pool for spec in plan.specs)}
    order = random.Random(7)
    blocks, slots = list(range(1, BLOCKS)), list(range(1, SLOTS))
    order.shuffle(blocks)
    order.shuffle(slots)
    known = min(size for size in (model.vocab_size, plan.hints.vocab_size) if size)
    rig = Rig(
        model,
        backend,
        part.backend.alloc_caches(plan.specs, units),
        plan.specs,
        plan.hints,
        plan.config,
        plan.block_size,
        plan.max_len,
        known,
        blocks,
        slots,
    )
    rig.poison([NULL, *blocks], [NULL, *slots])
    return rig


def stranger(card: ModelCard) -> ModelCard:
    """The same configuration under the name of another architecture."""
    name = "SomeOtherForCausalLM"
    return evolve(card, architecture=name, config={**card.config, "architectures": [name]})
