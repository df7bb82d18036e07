"""A typed front for the hooks: one method each, which checks what came back and names who returned it.

pluggy checks argument names only. A wrong return type would surface far away, as an AttributeError in the step loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import attrs

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import DeepInferError, HookReturnError, NotSupported, PluginConflict
from deepinfer_core.interfaces import (
    Backend,
    GrammarEngine,
    LogitsFilter,
    Model,
    RowSampler,
    Sampler,
    Scorer,
    StepObserver,
)
from deepinfer_core.plugins.failure import plugin_failure
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.record import PluginRecord
from deepinfer_core.text.tokenizer import Tokenizer
from deepinfer_core.types import CacheSpec, CommandSpec, ModelCard, ModelMatch, SchedulerHints

T = TypeVar("T")


class Hooks:
    """Calls hooks of loaded plugins. Whatever a plugin raises comes out as a typed error of that plugin."""

    def __init__(self, manager: PluginManager) -> None:
        self.manager = manager

    def backend_create(self, owner: PluginRecord, device: str | None, config: EngineConfig) -> Backend:
        result = self._call(owner, "deepinfer_backend_create", name=owner.name, device=device, config=config)
        return expect(result, Backend, hook="deepinfer_backend_create", owner=owner)  # type: ignore[type-abstract]

    def model_match(self, owner: PluginRecord, card: ModelCard) -> ModelMatch | None:
        results = self._call(owner, "deepinfer_model_match", card=card)
        matches = [expect(item, ModelMatch, hook="deepinfer_model_match", owner=owner) for item in results]
        if not matches:
            return None
        best = max(matches, key=lambda match: match.score)
        return best if best.card is not None else attrs.evolve(best, card=card)

    def cache_specs(self, owner: PluginRecord, match: ModelMatch, config: EngineConfig) -> tuple[CacheSpec, ...]:
        hook = "deepinfer_cache_specs"
        result = self._call(owner, hook, match=match, config=config)
        if not isinstance(result, Sequence) or isinstance(result, str | bytes):
            raise wrong_return(hook, owner, result, "a sequence of CacheSpec")
        for item in result:
            if not isinstance(item, CacheSpec):
                raise wrong_return(hook, owner, result, f"a sequence of CacheSpec, got one with {type(item).__name__}")
        return tuple(result)

    def model_create(self, owner: PluginRecord, match: ModelMatch, config: EngineConfig, backend: Backend) -> Model:
        result = self._call(owner, "deepinfer_model_create", match=match, config=config, backend=backend)
        return expect(result, Model, hook="deepinfer_model_create", owner=owner)  # type: ignore[type-abstract]

    def sampler_create(
        self,
        owner: PluginRecord,
        name: str,
        params: Mapping[str, Any],
        vocab_size: int,
        config: EngineConfig | None = None,
        backend: Backend | None = None,
    ) -> Sampler:
        arguments = {"name": name, "params": params, "vocab_size": vocab_size, "config": config, "backend": backend}
        result = self._call(owner, "deepinfer_sampler_create", **arguments)
        made = expect(result, Sampler, hook="deepinfer_sampler_create", owner=owner)  # type: ignore[type-abstract]
        if samples_rows(made):
            raise NotSupported(
                f"sampler {owner.name!r} samples the rows of requests that name it, and no whole steps",
                reason=f"sample of {owner.title} takes draws",
                remedy=f"leave --sampler out, and name {owner.name!r} in requests (SamplingParams(sampler=...))",
                details={"field": "sampler", "plugin": owner.key},
            )
        return made

    def row_sampler_create(
        self,
        owner: PluginRecord,
        params: Mapping[str, Any],
        vocab_size: int,
        config: EngineConfig | None = None,
        backend: Backend | None = None,
    ) -> RowSampler:
        """As ``sampler_create``, for a request. Raises HookReturnError for a sampler that samples whole steps."""
        hook = "deepinfer_sampler_create"
        arguments = {"params": params, "vocab_size": vocab_size, "config": config, "backend": backend}
        result = self._call(owner, hook, name=owner.name, **arguments)
        made = expect(result, RowSampler, hook=hook, owner=owner)  # type: ignore[type-abstract]
        if not samples_rows(made):
            raise NotSupported(
                f"sampler {owner.name!r} samples whole steps, and a request can only name one that samples its rows",
                reason=f"sample of {owner.title} takes no draws",
                remedy=f"leave sampler out of the request, or use --sampler {owner.name} for the engine",
                details={"field": "sampler", "plugin": owner.key},
            )
        return made

    def logits_filter_create(self, owner: PluginRecord, params: Mapping[str, Any], vocab_size: int) -> LogitsFilter:
        hook = "deepinfer_logits_filter_create"
        result = self._call(owner, hook, name=owner.name, params=params, vocab_size=vocab_size)
        return expect(result, LogitsFilter, hook=hook, owner=owner)  # type: ignore[type-abstract]

    def grammar_create(self, owner: PluginRecord, tokenizer: Tokenizer, vocab_size: int) -> GrammarEngine:
        hook, config = "deepinfer_grammar_create", self.manager.config
        result = self._call(owner, hook, name=owner.name, tokenizer=tokenizer, vocab_size=vocab_size, config=config)
        return expect(result, GrammarEngine, hook=hook, owner=owner)  # type: ignore[type-abstract]

    def step_observers(self, owners: Sequence[PluginRecord], config: EngineConfig) -> tuple[StepObserver, ...]:
        """The observers of all owners, in order. Where one cannot be had, those before it are closed."""
        hook = "deepinfer_step_observer"
        made: list[StepObserver] = []
        try:
            for owner in owners:
                if self.manager.hook(owner, hook) is not None:
                    for item in self._call(owner, hook, config=config):
                        made.append(expect(item, StepObserver, hook=hook, owner=owner))  # type: ignore[type-abstract]
        except BaseException:
            for observer in made:
                observer.close()
            raise
        return tuple(made)

    def scorer_create(self, owner: PluginRecord, params: Mapping[str, Any]) -> Scorer:
        hook = "deepinfer_scorer_create"
        result = self._call(owner, hook, name=owner.name, params=params)
        return expect(result, Scorer, hook=hook, owner=owner)  # type: ignore[type-abstract]

    def scheduler_hints(
        self, owners: Sequence[PluginRecord], match: ModelMatch, backend: Backend, config: EngineConfig
    ) -> SchedulerHints:
        """The hints of all owners, combined field by field."""
        hook = "deepinfer_scheduler_hints"
        given: list[tuple[PluginRecord, SchedulerHints]] = []
        for owner in owners:
            if self.manager.hook(owner, hook) is not None:
                for item in self._call(owner, hook, match=match, backend=backend, config=config):
                    given.append((owner, expect(item, SchedulerHints, hook=hook, owner=owner)))
        return combine_hints(given)

    def cli_commands(self, owner: PluginRecord) -> tuple[CommandSpec, ...]:
        """The commands that the plugin's manifest declares. Raises HookReturnError if these are others."""
        hook = "deepinfer_cli_commands"
        specs: list[CommandSpec] = []
        for result in self._call(owner, hook):
            if not isinstance(result, list | tuple) or not all(isinstance(item, CommandSpec) for item in result):
                raise wrong_return(hook, owner, result, "a sequence of CommandSpec")
            specs += result
        given, declared = sorted(spec.name for spec in specs), sorted(item.name for item in owner.table.commands)
        if given != declared:
            raise HookReturnError(
                f"{hook} of {owner.name} gives other commands than its manifest declares",
                reason=f"given: {', '.join(given) or 'none'}; declared: {', '.join(declared) or 'none'}",
                remedy=f"ask the authors of {owner.distribution}, or install another release of it",
                details={"hook": hook, "plugin": owner.key},
            )
        return tuple(specs)

    def _call(self, owner: PluginRecord, hook: str, **arguments: Any) -> Any:
        caller = self.manager.hook(owner, hook)
        if caller is None:
            raise wrong_return(hook, owner, None, "an implementation of it")
        try:
            with self.manager.calling(owner):
                result = caller(**arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # also SystemExit, and a panic of a compiled extension
            phase = "create" if hook.endswith("_create") else hook
            error = plugin_failure(owner, phase, exc)
            if error is exc:
                raise
            raise error from exc
        return result


def samples_rows(sampler: object) -> bool:
    """Whether this is a ``RowSampler``: its ``sample`` has the argument ``draws``. Protocols compare names of methods
    only, and both kinds of sampler are made by one hook."""
    try:
        return "draws" in inspect.signature(sampler.sample).parameters  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError):  # a compiled method may hide its arguments
        return False


def expect(result: object, wanted: type[T], *, hook: str, owner: PluginRecord) -> T:
    """``result``, if it is a ``wanted``. Raises HookReturnError naming hook, plugin, and what is missing."""
    if isinstance(result, wanted):
        return result
    needed = wanted.__name__
    if getattr(wanted, "_is_protocol", False) and result is not None:
        members = sorted(m for m in _protocol_members(wanted) if not hasattr(result, m))
        needed += f" (it lacks {', '.join(members)})"
    raise wrong_return(hook, owner, result, f"{'an' if needed[0] in 'AEIOU' else 'a'} {needed}")


def _protocol_members(protocol: type) -> set[str]:
    own = {name for name in vars(protocol) if not name.startswith("_")}
    return own | set(getattr(protocol, "__annotations__", {}))


def wrong_return(hook: str, owner: PluginRecord, result: object, wanted: str) -> DeepInferError:
    got = "None" if result is None else type(result).__name__
    return HookReturnError(
        f"{hook} of {owner.name} returned {got}, expected {wanted}",
        reason=f"{owner.title} does not follow plugin API 1.0",
        remedy=f"ask the authors of {owner.distribution}, or install another release of it",
        details={"hook": hook, "plugin": owner.key, "returned": got},
    )


_INPUT_RECORDS = ("InputMetadata", "InputMetadataV41")  # each extends the one before


def combine_hints(given: Sequence[tuple[PluginRecord, SchedulerHints]]) -> SchedulerHints:
    """One set of hints. A field at its default asks for nothing; limits take the least, the input record the richest.

    :raises PluginConflict: when two plugins ask for different values of a field that has no order.
    """
    chosen: dict[str, tuple[Any, PluginRecord]] = {}
    defaults = SchedulerHints()
    for owner, hints in given:
        for declared in attrs.fields(SchedulerHints):
            name, value = declared.name, getattr(hints, declared.name)
            if value is getattr(defaults, name) or (name != "ngram_table" and value == getattr(defaults, name)):
                continue
            if name not in chosen:
                chosen[name] = (value, owner)
                continue
            chosen[name] = (_combined(name, chosen[name], value, owner), owner)
    return attrs.evolve(defaults, **{name: value for name, (value, _) in chosen.items()})


def _combined(name: str, held: tuple[Any, PluginRecord], value: Any, owner: PluginRecord) -> Any:
    other, first = held
    if name == "max_model_len":
        return min(other, value)
    if name == "backtrack":
        return max(other, value)
    if name == "inputs":
        return max(other, value, key=_INPUT_RECORDS.index)
    same = other is value if name == "ngram_table" else other == value
    if same:
        return value
    raise PluginConflict(
        f"{first.title} and {owner.title} ask the scheduler for different values of {name}",
        reason=f"{first.name} asks for {other!r}, {owner.name} for {value!r}",
        remedy="use another backend, or another model plugin",
        details={"field": name},
    )
