"""The engine that is measured: its settings, a model with fewer layers, and whether all of it fits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from deepinfer_bench.memory import no_memory, ran_out, require_memory
from deepinfer_bench.point import Plan
from deepinfer_bench.workload import Shape
from deepinfer_core import LLM
from deepinfer_core.assembly.assemble import Assembly, assemble, default_checkpoint, match_model
from deepinfer_core.assembly.model_card import read_model_card
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import CapacityError, ConfigError, InvalidParameter, NotSupported
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.selection import select_backend
from deepinfer_core.types import ModelMatch


@contextmanager
def opened(config: EngineConfig, shapes: Sequence[Shape], layers: int | None) -> Iterator[LLM]:
    """An engine for ``shapes``, which have one number of drafts, with the graphs of all sizes recorded.

    :param layers: Run so many layers of the model, on random weights; None: all.
    :raises CapacityError: the weights do not fit into the memory that is free.
    """
    drafts = shapes[0].draft_tokens
    most = max(config.max_num_seqs if "max_num_seqs" in config.origins else 1, *(shape.batch for shape in shapes))
    changes: dict[str, Any] = {"draft_tokens": drafts, "max_num_seqs": most, "graphs_at_start": True}
    config = attrs.evolve(config, **changes)
    with TemporaryDirectory(prefix="deepinfer-bench-") as folder:
        if layers is not None:
            config = attrs.evolve(config, model=str(_with_layers(config, layers, Path(folder))))
        manager = PluginManager.from_config(config)
        with LLM.from_assembly(_assembled(manager, config, layers)) as llm:
            yield llm


def _assembled(manager: PluginManager, config: EngineConfig, layers: int | None) -> Assembly:
    """Random weights are made where they are used: what does not fit is told before any of them is."""
    _, match = _matched(manager, config)
    if config.load_format != "dummy" or match.weight_sizes is None:
        return assemble(config, manager=manager)
    backend, sizes = select_backend(manager, match.requirements).record.name, match.weight_sizes(config.draft_tokens)
    require_memory(backend, sizes, config, layers)
    try:
        return assemble(config, manager=manager)
    except Exception as exc:
        if ran_out(exc):
            raise no_memory(backend, sizes, config, layers) from exc
        raise


def require_fit(llm: LLM, shapes: Sequence[Shape], plan: Plan) -> None:
    """Raise InvalidParameter or CapacityError for a shape that the engine cannot hold to its last step."""
    built = llm.built
    for shape in shapes:
        tokens = plan.tokens(shape)
        each = shape.prompt_tokens + tokens
        if each > built.max_model_len:
            raise InvalidParameter(
                f"{shape.name}: a prompt of {shape.prompt_tokens} and {tokens} tokens behind it are {each}, and a "
                f"sequence has at most {built.max_model_len}",
                reason=f"{plan.steps} steps, those before the window and those under the profiler, all with "
                f"{1 + shape.draft_tokens} tokens a step at most",
                remedy="lower the prompt, --steps or --draft-tokens, or raise --max-model-len if the model allows it",
                details={"tokens": each, "max_model_len": built.max_model_len},
            )
        blocks = shape.batch * -(-each // built.plan.block_size) + 1
        if shape.batch > built.plan.max_num_seqs or blocks > built.plan.num_blocks:
            raise _no_room(llm, shape, each, blocks)


def _no_room(llm: LLM, shape: Shape, tokens: int, blocks: int) -> CapacityError:
    built, parts = llm.built, llm.assembly
    needed = parts.config.kv_memory
    pools = {spec.pool for spec in parts.cache_specs}
    if pools & {"main", "index"}:
        needed += max(0, blocks - built.plan.num_blocks) * parts.backend.unit_bytes(parts.cache_specs, "main")
    if shape.batch > built.plan.max_num_seqs:
        needed = max(needed, parts.config.kv_memory * -(-shape.batch // built.plan.max_num_seqs))
    mebibytes = -(-needed // (1 << 20))
    return CapacityError(
        f"{shape.name}: {shape.batch} sequences of {tokens} tokens do not fit into the caches",
        reason=f"they hold {built.plan.tokens} tokens of {built.plan.max_num_seqs} sequences",
        remedy=f"raise --kv-memory to about {mebibytes}MiB, or lower the batch, the prompt or --steps",
        details={"needed_blocks": blocks, "blocks": built.plan.num_blocks, "needed_bytes": needed},
    )


def _with_layers(config: EngineConfig, layers: int, folder: Path) -> Path:
    """A model directory with fewer layers and the tokenizer of the other one. Raises ConfigError, NotSupported."""
    if config.load_format != "dummy":
        raise ConfigError(
            f"--layers {layers} needs random weights",
            reason="a checkpoint has the weights of all layers, and another number of them is another model",
            remedy="add --load-format dummy",
            details={"field": "layers"},
        )
    manager = PluginManager.from_config(config)
    source, match = _matched(manager, config)
    if match.with_layers is None:
        raise NotSupported(
            f"model {match.name!r} cannot be cut down",
            reason="its plugin says nothing of other numbers of layers",
            remedy="leave --layers out, or write a config.json with fewer layers",
            details={"field": "layers"},
        )
    for entry in source.iterdir():
        if entry.is_file() and entry.suffix != ".safetensors" and entry.name != "config.json":
            shutil.copy(entry, folder / entry.name)
    (folder / "config.json").write_text(json.dumps(dict(match.with_layers(layers))), "utf-8")
    return folder


def _matched(manager: PluginManager, config: EngineConfig) -> tuple[Path, ModelMatch]:
    card = read_model_card(config.model if config.model is not None else default_checkpoint(manager))
    _, match = match_model(manager, card)
    return Path(card.path), match
