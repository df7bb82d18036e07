"""Plugin settings that name a plugin which is not installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepinfer_core.config import PluginSettings
from deepinfer_core.settings import did_you_mean

if TYPE_CHECKING:
    from deepinfer_core.plugins.record import PluginRecord


def unmatched_names(records: Sequence[PluginRecord], settings: PluginSettings) -> list[str]:
    """Warnings for names in the plugin settings that no installed plugin has, each with the nearest one.

    A misspelt name would otherwise leave a plugin on, or off, without a word.
    """
    names = {name for record in records for name in (record.name, record.key, record.distribution)}
    warnings = [
        f"W_PLUGIN: {setting} names {name!r}, which is no installed plugin{did_you_mean(name, names)}"
        for setting, listed in (
            ("plugins.disable (--no-plugin)", settings.disable),
            ("plugins.allow (DEEPINFER_PLUGINS)", settings.allow or ()),
        )
        for name in listed
        if name not in names
    ]
    keys = {record.key for record in records}
    for key, distribution in settings.prefer.items():
        setting = f"plugins.prefer (--prefer) {key}={distribution}"
        providers = {record.distribution for record in records if record.key == key}
        if key not in keys:
            warnings.append(f"W_PLUGIN: {setting}: {key!r} is no installed plugin{did_you_mean(key, keys)}")
        elif distribution not in providers:
            guess = did_you_mean(distribution, providers) or f"; installed: {', '.join(sorted(providers))}"
            warnings.append(f"W_PLUGIN: {setting}: {distribution!r} does not provide {key}{guess}")
    return warnings


def unmatched_extensions(records: Sequence[PluginRecord], settings: PluginSettings) -> list[str]:
    """Warnings for names in ``plugins.enable`` that no extension has. A run refuses them; a listing only says so."""
    names = {record.name for record in records if record.kind == "extension"}
    return [
        f"W_PLUGIN: plugins.enable (--plugin) names {name!r}, which is no installed extension"
        f"{did_you_mean(name, names)}"
        for name in settings.enable
        if name not in names
    ]
