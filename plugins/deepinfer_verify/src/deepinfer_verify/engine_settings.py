"""The settings of an engine whose numbers are compared: those that say where it runs, and those of the comparison."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping

from attrs import evolve

from deepinfer_core.config import EngineConfig, settings_by_key

MACHINE = (
    *("backend", "emulate", "model", "model_plugin", "device", "kv_memory", "num_threads"),
    *("debug", "strict_plugins"),
)
"""Where an engine runs; with the settings of plugins they always hold."""


def settings_for(
    config: EngineConfig,
    wanted: Mapping[str, object],
    kept: Collection[str] = (),
    origins: Mapping[str, str] | None = None,
) -> tuple[EngineConfig, list[str]]:
    """``wanted`` on the machine of ``config``, and the names of its other settings, which are left out.

    ``kept``: settings of ``config`` that hold as well. ``origins``: where values of ``wanted`` are written, for errors.
    """
    default = EngineConfig()
    given = {key: config.get(key) for key in settings_by_key() if config.get(key) != default.get(key)}
    holds = {key: value for key, value in given.items() if key in MACHINE or key in kept or key.startswith("plugins.")}
    left_out = [key for key, value in given.items() if key not in holds and wanted.get(key, default.get(key)) != value]
    resolved = EngineConfig.resolve({**holds, **wanted}, environ={})
    written = {key: config.origin(key) for key in holds} | {
        key: place for key, place in (origins or {}).items() if key in wanted
    }
    return evolve(resolved, origins={**resolved.origins, **written}), left_out


def say_left_out(names: Collection[str], said: set[str]) -> None:
    """On standard error, each once."""
    for name in names:
        if name not in said:
            said.add(name)
            sys.stderr.write(f"deepinfer: setting {name} is not used: this comparison has its own\n")
