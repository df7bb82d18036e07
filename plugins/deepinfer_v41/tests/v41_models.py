"""Models, drivers and golden values that several test modules use; each is made once a process."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor
from v41_driver import Driver, geometry
from v41_recording import PatchedBackend, Recorder, higher_ties

import deepinfer_v41
from deepinfer_core.types import ModelCard
from deepinfer_cpu import backend as cpu
from deepinfer_v41 import plugin
from deepinfer_v41.caches import cache_specs
from deepinfer_v41.model import V41Model

Variant = Literal["plain", "kvq", "released"]
SHIPPED = Path(deepinfer_v41.__file__).parent / "checkpoints" / "v41-tiny"
GOLDEN = Path(__file__).parent / "golden"
BLOCK = 128
NO_SETTINGS = SimpleNamespace(max_backtracking_tokens=0)


def card(path: Path) -> ModelCard:
    config = json.loads((path / "config.json").read_text())
    return ModelCard(path, config["architectures"][0], config["model_type"], config)


@functools.cache
def manifest() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / "golden-v41-tiny.json").read_text())
    return found


@functools.cache
def golden() -> dict[str, Tensor]:
    return load_file(GOLDEN / "golden-v41-tiny.safetensors")


@functools.cache
def cpu_backend() -> Any:
    torch.set_num_threads(1)
    return cpu.create()


@functools.cache
def backend_named(name: str) -> Any:
    """``cpu``, or an installed backend for tests on its device."""
    if name == "cpu":
        return cpu_backend()
    from deepinfer_core.plugins.hooks import Hooks
    from deepinfer_core.plugins.manager import current_manager

    manager = current_manager()
    return Hooks(manager).backend_create(manager.require("backend", name), None, manager.config)


def make_driver(
    path: Path,
    variant: Variant,
    *,
    backend: Any = None,
    block_size: int = BLOCK,
    blocks: int = 64,
    slots: int = 40,
    draft_tokens: int = 0,
    temperatures: tuple[float, ...] = (1.0,),
) -> Driver:
    """A loaded model of ``path`` over fresh caches, made through the plugin's own hooks where they fit."""
    backend = backend or cpu_backend()
    match = plugin.deepinfer_model_match(card=card(path))
    config, quantised = match.payload.config, variant != "plain"
    model = V41Model(
        config,
        backend,
        match.payload.tables,
        numeric_mode="released" if variant == "released" else "exact",
        cache_formats=quantised,
        draft_tokens=draft_tokens,
        confidence_temperatures=temperatures,
    )
    model.load(path)
    specs = cache_specs(config, quantised=quantised, block_size=block_size, drafts=draft_tokens > 0)
    units = {"main": blocks, "index": blocks, "swa": slots, "state": slots}
    hints = plugin.deepinfer_scheduler_hints(match=match, backend=backend, config=NO_SETTINGS)
    order = torch.Generator().manual_seed(7)
    return Driver(
        model,
        backend,
        backend.alloc_caches(specs, units),
        geometry(hints, block_size, config.max_position_embeddings),
        [1 + int(i) for i in torch.randperm(blocks - 1, generator=order)],
        [1 + int(i) for i in torch.randperm(slots - 1, generator=order)],
    )


@functools.cache
def shipped(variant: Variant, on: str = "cpu") -> Driver:
    """The shipped checkpoint, ties by the model's rule."""
    return make_driver(SHIPPED, variant, backend=backend_named(on))


@functools.cache
def shipped_higher_ties(variant: Variant, on: str = "cpu", draft_tokens: int = 0) -> Driver:
    """The same with the golden values' tie rule."""
    backend = PatchedBackend(backend_named(on), {"index.topk": higher_ties})
    return make_driver(SHIPPED, variant, backend=backend, draft_tokens=draft_tokens)


@functools.cache
def recorded(variant: Variant, ties: Literal["lower", "higher"] = "higher", on: str = "cpu") -> tuple[Driver, Recorder]:
    """The shipped checkpoint with the given tie rule, and a recorder of what its ops answered."""
    config = plugin.deepinfer_model_match(card=card(SHIPPED)).payload.config
    recorder = Recorder(backend_named(on), config, {"index.topk": higher_ties} if ties == "higher" else {})
    return make_driver(SHIPPED, variant, backend=recorder.backend), recorder
