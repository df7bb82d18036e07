"""Put an engine's parts together: model card, model plugin, backend, caches, hints, sampler.

One direction, each step once (``spec/plugins.md`` 7 and 9): card, match, backend, requirements, caches, hints, model.
Nothing is imported but the plugins that this engine needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import define, field

from deepinfer_core.assembly import announcing
from deepinfer_core.assembly.model_card import read_model_card
from deepinfer_core.assembly.model_length import resolve_max_model_len
from deepinfer_core.assembly.named_plugins import enabled_extensions, refuse_unusable_names
from deepinfer_core.assembly.parts import MakeGrammarEngine
from deepinfer_core.assembly.setting_names import settings_named_as_written
from deepinfer_core.assembly.speculation import draft_length
from deepinfer_core.assembly.working_folder import require_working_folder
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError, DeepInferError, ModelAmbiguous, ModelError, ModelNotFound, NotSupported
from deepinfer_core.interfaces import Backend, LogitsFilter, Model, RowSampler, Sampler, StepObserver
from deepinfer_core.observation.closing import close_observers
from deepinfer_core.plugins.emulation import check_emulation
from deepinfer_core.plugins.failure import plugin_failure
from deepinfer_core.plugins.grammars import choose_grammar_engine
from deepinfer_core.plugins.hooks import Hooks
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.names import FIRST_PARTY_DISTRIBUTIONS
from deepinfer_core.plugins.record import PluginRecord
from deepinfer_core.plugins.requirements import missing_capabilities
from deepinfer_core.plugins.selection import Selection, refuse_missing, select_backend
from deepinfer_core.types import CacheSpec, ModelCard, ModelMatch, SchedulerHints

Announce = Callable[[str], None]
LOG = logging.getLogger("deepinfer.backend")


@define(eq=False)
class Assembly:
    """The parts of one engine. The model is created and its weights are loaded."""

    config: EngineConfig
    manager: PluginManager
    card: ModelCard
    match: ModelMatch
    selection: Selection
    backend: Backend
    model: Model
    cache_specs: Sequence[CacheSpec]
    hints: SchedulerHints
    owners: dict[str, str] = field(factory=dict)
    """Part (``backend``, ``model``, ``sampler``, ``grammar``) -> the plugin that made it, for the text of a fault."""
    observers: Sequence[StepObserver] = ()
    """What sees the steps of the engine that is made of these parts."""
    _closed: bool = field(default=False, init=False)

    def make_sampler(self, name: str | None, params: Mapping[str, Any], vocab_size: int) -> Sampler:
        """The sampler called ``name`` (None: that of the settings). Loads its plugin on first use.

        :raises PluginMissing: no plugin has the name; lists the installed ones.
        """
        owner = self.manager.require("sampler", name or self.config.sampler)
        self.owners["sampler"] = owner.origin
        hooks = Hooks(self.manager)
        return hooks.sampler_create(owner, owner.name, dict(params), vocab_size, self.config, self.backend)

    def make_row_sampler(self, name: str, params: Mapping[str, Any], vocab_size: int) -> RowSampler:
        """The row sampler that a request names. Loads its plugin on first use.

        :raises PluginMissing: no plugin has the name; lists the installed ones.
        :raises NotSupported: the sampler of that name samples whole steps.
        """
        owner = self.manager.require("sampler", name)
        return Hooks(self.manager).row_sampler_create(owner, dict(params), vocab_size, self.config, self.backend)

    def make_logits_filter(self, name: str, params: Mapping[str, Any], vocab_size: int) -> LogitsFilter:
        """The logits filter that a request names. Loads its plugin on first use.

        :raises PluginMissing: no plugin has the name; lists the installed ones.
        """
        owner = self.manager.require("logits_filter", name)
        return Hooks(self.manager).logits_filter_create(owner, dict(params), vocab_size)

    def grammar_engine(self) -> MakeGrammarEngine:
        """What makes the grammar engine of the settings. Chooses and loads its plugin, which compiles nothing yet.

        :raises NotSupported: none is installed, or none can be used here.
        :raises PluginConflict: several can be used, and the settings name none.
        """
        owner = choose_grammar_engine(self.manager)
        self.owners["grammar"] = owner.origin
        return partial(Hooks(self.manager).grammar_create, owner)

    def close(self) -> None:
        """Close the backend and the observers. Idempotent."""
        if not self._closed:
            self._closed = True
            self.backend.close()
            close_observers(self.observers)


def assemble(
    config: EngineConfig,
    *,
    announce: Announce | None = announcing.announce,
    manager: PluginManager | None = None,
    structured: bool = False,
) -> Assembly:
    """Find, choose, create and load everything that ``config`` asks for.

    :param announce: Gets the line that says which backend runs and why; None: nobody does.
    :param manager: Plugins to use; None: the installed ones.
    :param structured: There will be structured output: without a grammar engine that is refused before the weights.
    :raises DeepInferError: a typed error of the step that failed; what was created until then is closed.
    """
    require_working_folder()
    manager = manager or PluginManager.from_config(config)
    hooks = Hooks(manager)
    refuse_unusable_names(manager)
    backend: Backend | None = None
    observers: tuple[StepObserver, ...] = ()
    try:
        if structured:
            choose_grammar_engine(manager)
        extensions = [manager.require("extension", name) for name in enabled_extensions(config)]
        observers = hooks.step_observers(extensions, config)
        card = read_model_card(config.model if config.model is not None else default_checkpoint(manager))
        owner, match = match_model(manager, card)
        selection = select_backend(manager, match.requirements)
        if announce is not None:
            announce(selection.line)
        with settings_named_as_written(config):
            backend = hooks.backend_create(selection.record, config.device, config)
            log_plan(backend)
            check_emulation(selection.record, backend, config)
            missing = missing_capabilities(backend, match.requirements)
            if missing:
                raise refuse_missing(backend.name, backend.capabilities.arch, missing)
            specs = hooks.cache_specs(owner, match, config)
            hints = hooks.scheduler_hints([owner, selection.record, *extensions], match, backend, config)
            resolve_max_model_len(config, hints)  # a model allocates for the length that it is given
            model = hooks.model_create(owner, match, config, backend)
            draft_length(config, hints, model)  # a wrong length is told before weights are read
            _load(owner, model, card.path, config)
    except BaseException:
        if backend is not None:
            backend.close()
        close_observers(observers)
        raise
    owners = {"backend": selection.record.origin, "model": owner.origin}
    return Assembly(config, manager, card, match, selection, backend, model, specs, hints, owners, observers)


def log_plan(backend: Backend) -> None:
    """The execution plan: a line for each distribution that serves ops."""
    served: dict[str, list[str]] = {}
    for op in sorted(backend.ops):
        served.setdefault(backend.plan.get(op, backend.name), []).append(op)
    for provider, ops in sorted(served.items()):
        count = f"{len(ops)} op{'' if len(ops) == 1 else 's'}"
        LOG.info("backend %s: %s by %s: %s", backend.name, count, provider, ", ".join(ops))


def _load(owner: PluginRecord, model: Model, path: Path, config: EngineConfig) -> None:
    dummy = getattr(model, "load_dummy", None)
    if config.load_format == "dummy" and dummy is None:
        raise NotSupported(
            f"model plugin {owner.name!r} has no random weights",
            reason="load_format is dummy, and its model has no load_dummy",
            remedy="leave --load-format out and give a checkpoint",
            details={"field": "load_format"},
        )
    try:
        if dummy is not None and config.load_format == "dummy":
            dummy(config.seed or 0)
        else:
            model.load(path)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        error = plugin_failure(owner, "load", exc)
        if error is exc:
            raise
        raise error from exc


def default_checkpoint(manager: PluginManager) -> Path:
    """The small checkpoint that an installed model plugin ships: a first-party one, so that installing another plugin
    changes no command that does not name it; else the first by name.

    :raises ModelNotFound: no usable plugin ships one; says what is wrong with one that does.
    :raises PluginMissing: no plugin has the name of ``--model-plugin``.
    """
    wanted = manager.config.model_plugin
    records = manager.registry.of_kind("model")
    for record in sorted(records, key=lambda r: (r.distribution not in FIRST_PARTY_DISTRIBUTIONS, r.name)):
        if record.table.checkpoint and record.manifest and wanted in (None, record.name):
            return record.manifest.path.parent / record.table.checkpoint
    if wanted is not None and manager.registry.find("model", wanted) is None:
        raise manager.registry.missing("model", wanted)
    unusable = [r for r in manager.registry.of_kind("model", usable=False) if not r.usable]
    unusable = [r for r in unusable if wanted in (None, r.name)]
    if unusable:
        first = next((r for r in unusable if r.table.checkpoint), unusable[0])
        raise ModelNotFound(
            "no model was given",
            reason="; ".join(f"{r.title} is {r.state}: {r.note or r.reason}" for r in unusable),
            remedy=f"{first.remedy}; or give --model DIR",
            details={"unusable": [r.key for r in unusable]},
        )
    raise ModelNotFound(
        "no model was given",
        reason=f"model plugin {wanted!r} ships no checkpoint"
        if wanted
        else "no installed model plugin ships a checkpoint",
        remedy="give --model DIR" + ("" if wanted else ", or pip install deepinfer-v41, which ships a small one"),
    )


def match_model(manager: PluginManager, card: ModelCard) -> tuple[PluginRecord, ModelMatch]:
    """The plugin that runs the card, and its match. Only plugins whose manifest lists the architecture are loaded.

    :raises ModelError: nobody runs the architecture; lists what the installed plugins run.
    :raises ModelAmbiguous: two plugins match with the same score.
    """
    wanted = manager.config.model_plugin
    if wanted is not None:
        candidates = [manager.require("model", wanted)]
    else:
        candidates = [r for r in manager.registry.of_kind("model") if card.architecture in r.table.architectures]
    matches: list[tuple[PluginRecord, ModelMatch]] = []
    errors: list[DeepInferError] = []
    for record in candidates:
        if not manager.load(record):
            continue
        try:
            match = Hooks(manager).model_match(record, card)
        except DeepInferError as exc:  # kept: another plugin may still run the model
            errors.append(exc)
            continue
        if match is not None:
            matches.append((record, match))
    if not matches:
        errors += [record.error for record in candidates if record.error is not None]
        raise errors[0] if errors else _unknown_architecture(manager, card)
    matches.sort(key=lambda item: (-item[1].score, item[0].name))
    best = [record for record, match in matches if match.score == matches[0][1].score]
    if len(best) > 1:
        names = [record.name for record in best]
        raise ModelAmbiguous(
            f"{card.architecture} is matched by {len(best)} plugins with score {matches[0][1].score}: "
            + ", ".join(record.title for record in best),
            reason="neither is better by its own account",
            remedy=f"choose one with --model-plugin {names[0]}",
            details={"plugins": names},
        )
    return matches[0]


def _unknown_architecture(manager: PluginManager, card: ModelCard) -> DeepInferError:
    if manager.config.model_plugin is not None:
        return ConfigError(
            f"model plugin {manager.config.model_plugin!r} does not run {card.architecture}",
            reason=f"config.json of {card.path} names that architecture",
            remedy="leave --model-plugin out, or give a model that it runs",
        )
    known = sorted({name for r in manager.registry.of_kind("model") for name in r.table.architectures})
    unusable = [r for r in manager.registry.of_kind("model", usable=False) if not r.usable]
    reason = f"installed plugins run: {', '.join(known) or 'nothing'}"
    if unusable:
        reason += f"; unusable: {', '.join(f'{r.name} ({r.state})' for r in unusable)}"
    able = next((r for r in unusable if card.architecture in r.table.architectures), None)
    if able is not None:
        return ModelError(
            f"no usable plugin runs the architecture {card.architecture}",
            reason=f"{able.title} does, and is {able.state}: {able.note or able.reason}",
            remedy=able.remedy,
            details={"architecture": card.architecture, "plugin": able.key, "known": known},
        )
    return ModelError(
        f"no installed plugin runs the architecture {card.architecture}",
        reason=reason,
        remedy="pip install the plugin that provides it, or give another --model",
        details={"architecture": card.architecture, "known": known},
    )
