"""Plugins that the settings name: whether each is there, before a model is looked at and its weights are read.

A plugin that a person named works or the command fails (``spec/plugins.md``, rule 2). What can be told without
importing it is told here; what its code says, when it is loaded.
"""

from __future__ import annotations

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import PluginMissing
from deepinfer_core.observation.settings import EXTENSION
from deepinfer_core.plugins.manager import PluginManager, backend_missing


def enabled_extensions(config: EngineConfig) -> tuple[str, ...]:
    """Names of the extensions that the settings enable: by name, or by wanting what only one of them has."""
    names = config.plugins.enable
    return (*names, EXTENSION) if config.observe.is_on and EXTENSION not in names else names


def refuse_unusable_names(manager: PluginManager) -> None:
    """Look up every name in the settings. Nothing is imported.

    :raises DeepInferError: no plugin has a name (BackendNotInstalled, PluginMissing: they list the installed ones), or
        the one that has it cannot be used; the error is that plugin's own.
    """
    config, registry = manager.config, manager.registry
    if config.backend != "auto" and registry.find("backend", config.backend) is None:
        raise backend_missing(registry, config.backend)
    by_setting = {"model_plugin": "model", "sampler": "sampler", "grammar_engine": "grammar"}
    named = [(kind, config.get(key)) for key, kind in by_setting.items() if config.origin(key) != "default"]
    named += [("extension", name) for name in enabled_extensions(config)]
    for kind, name in named:
        if name in (None, "auto"):  # no plugin has that name
            continue
        record = registry.find(kind, name)
        if record is None and (kind, name) == ("extension", EXTENSION) and config.observe.is_on:
            raise PluginMissing(
                "metrics, step logs and traces need the extension 'metrics'",
                reason="deepinfer-metrics, which has it, is not installed",
                remedy="pip install deepinfer-metrics, or leave the settings of [observe] out",
                details={"kind": kind, "name": name},
            )
        if record is None:
            raise registry.missing(kind, name)
        if record.error is not None:
            raise record.error
