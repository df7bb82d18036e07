"""The whole diagnosis, in the order in which it is printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from attrs import define

from deepinfer_core.config import EngineConfig
from deepinfer_core.doctor.findings import Finding, Report
from deepinfer_core.doctor.installation import core_findings
from deepinfer_core.doctor.origins import distribution_of, module_origin
from deepinfer_core.doctor.plugin_checks import Limits, plugin_findings
from deepinfer_core.doctor.settings_checks import Resolved, warning_findings
from deepinfer_core.plugins.child import ChildResult, run_children
from deepinfer_core.plugins.manager import backend_missing
from deepinfer_core.plugins.record import PluginRecord
from deepinfer_core.plugins.registry import Registry

_TASKS = "deepinfer_core.doctor.child_tasks"
_DEFAULT_LIMITS = Limits()


@define
class Scope:
    """What to look at."""

    name: str | None = None
    """Only the plugins of this name, KIND:NAME or distribution; None: everything."""
    flags: Mapping[str, object] | None = None
    """Settings as typed, for the child that examines the model."""


def diagnose(
    resolved: Resolved,
    scope: Scope,
    versions: Mapping[str, str],
    *,
    limits: Limits = _DEFAULT_LIMITS,
    entries: Iterable[metadata.EntryPoint] | None = None,
) -> Report:
    """Examine the installation. Never raises for what it finds.

    :param entries: Entry points to use in place of the installed ones.
    :raises PluginLockError: the file of ``plugins.lock`` is none.
    :raises PluginMissing: nothing is called ``scope.name``; lists what is.
    """
    config = resolved.config
    warnings: list[str] = []
    registry = Registry.build(config, entries, warn=warnings.append)
    if scope.name is not None:
        records = registry.named(scope.name)
        findings = [] if resolved.complete else list(resolved.findings)
        findings += plugin_findings(
            records, frozenset(record.key for record in records), limits, trace=config.trace_hooks
        )
        findings += _model_findings(resolved, scope, limits)
        return Report(tuple(findings), versions)
    findings = [*core_findings(), *_compiled_findings(limits)]
    findings += [*resolved.findings, *warning_findings(warnings)]
    findings += [Finding.of_error("settings", "lock", problem) for problem in registry.lock_problems]
    wanted = _wanted(config)
    of_plugins = plugin_findings(registry.records, frozenset(wanted), limits, trace=config.trace_hooks)
    findings += [*of_plugins, *_absent(registry, config, wanted)]
    if config.backend == "auto":
        findings.append(_automatic(registry.of_kind("backend"), of_plugins))
    findings += _model_findings(resolved, scope, limits)
    return Report(tuple(findings), versions)


def _wanted(config: EngineConfig) -> list[str]:
    """Keys of the plugins that any run under these settings needs."""
    keys = [f"sampler:{config.sampler}"]
    keys += [f"backend:{config.backend}"] if config.backend != "auto" else []
    keys += [f"grammar:{config.grammar_engine}"] if config.grammar_engine != "auto" else []
    keys += [f"model:{config.model_plugin}"] if config.model_plugin is not None else []
    return keys + [f"extension:{name}" for name in config.plugins.enable]


def _absent(registry: Registry, config: EngineConfig, wanted: Sequence[str]) -> Iterator[Finding]:
    """Plugins that the settings name and nobody provides."""
    for key in wanted:
        kind, _, name = key.partition(":")
        if registry.find(kind, name) is None:
            error = backend_missing(registry, name) if kind == "backend" else registry.missing(kind, name)
            yield Finding.of_error(key, "plugin", error, data={"installed": False})


def _automatic(records: Sequence[PluginRecord], findings: Sequence[Finding]) -> Finding:
    """Whether ``--backend auto`` finds anything, before a model is looked at."""
    usable = [f.area.partition(":")[2] for f in findings if f.check == "device" and f.data.get("available")]
    data = {"usable": usable}
    if usable:
        return Finding("settings", "backend", "ok", f"auto: usable here: {', '.join(usable)}", data=data)
    return Finding(
        "settings",
        "backend",
        "problem",
        "auto: no installed backend can be used here",
        code="E_BACKEND_UNAVAILABLE",
        reason=f"installed: {', '.join(record.name for record in records) or 'none'}",
        remedy="pip install deepinfer-cpu, or repair one of those above",
        data=data,
    )


def _compiled_findings(limits: Limits) -> Iterator[Finding]:
    """The contracts, the native core, and the library for chats, each imported in a child."""
    calls: list[tuple[str, Sequence[object]]] = [(f"{_TASKS}:native_parts", ()), (f"{_TASKS}:chat_library", ())]
    with_chat = distribution_of("deepseek-recipe") is not None
    native, *chat = run_children(calls if with_chat else calls[:1], limits.load, at_once=2)
    if native.failure:
        yield _crashed("native", native, "deepinfer-native")
    else:
        yield from _part("contracts", "deepinfer-contracts", native.answer["contracts"])
        yield from _part("native", "deepinfer-native", native.answer["native"])
    for result in chat:
        if result.failure:
            yield _crashed("chat library", result, "deepseek-recipe", needed=False)
        elif "error" in result.answer:
            yield Finding.of_record("core", "chat library", result.answer["error"], needed=False)
        else:
            yield Finding("core", "chat library", "ok", result.answer["file"], data=result.answer)


def _part(check: str, distribution: str, found: Mapping[str, Any]) -> Iterator[Finding]:
    if "error" in found:
        yield Finding.of_record("core", check, found["error"])
        return
    detail = f"{found['version']}, {found.get('library', found['file'])}"
    records = found.get("records", {})
    lines = [f"{name}: {about['fields']} fields, chain {about['chain']}" for name, about in records.items()]
    if "library" in found:
        detail += ", built from these contracts"
    yield Finding("core", check, "ok", detail, data=dict(found), lines=lines)
    origin = module_origin("core", distribution, distribution_of(distribution), found["file"], needed=True)
    if origin.status != "ok":
        yield origin


def _crashed(check: str, result: ChildResult, distribution: str, *, needed: bool = True) -> Finding:
    return Finding(
        "core",
        check,
        "problem",
        result.told("its import"),
        code="E_ENGINE" if needed else "E_LIBRARY",
        reason="it was imported in a process of its own",
        remedy=f"pip install --force-reinstall {distribution}, built for this Python and machine",
        needed=needed,
    )


def _model_findings(resolved: Resolved, scope: Scope, limits: Limits) -> list[Finding]:
    if resolved.config.model is None:
        return []
    arguments = (dict(scope.flags or {}), resolved.file, resolved.complete)
    [result] = run_children([(f"{_TASKS}:examine_model", arguments)], limits.model, at_once=1)
    if result.failure:
        return [
            Finding(
                "model",
                "examination",
                "problem",
                result.told("the process that looked at the model"),
                code="E_PLUGIN",
                reason="a plugin of the model or of the backend ended it",
                remedy="run deepinfer doctor on the plugins of that model and backend, or choose --backend cpu",
            )
        ]
    return [Finding(**fields) for fields in result.answer]
