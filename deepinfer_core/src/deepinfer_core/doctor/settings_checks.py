"""The settings: whether they can be read, what is misspelt, and where each value comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from deepinfer_core.config import EngineConfig, settings_by_key
from deepinfer_core.doctor.findings import Finding
from deepinfer_core.errors import ConfigError, NotSupported

AREA = "settings"


@frozen
class Resolved:
    """The settings to examine under, and what is wrong with those that were given."""

    config: EngineConfig
    findings: tuple[Finding, ...]
    complete: bool
    """False: a setting of the file or the environment cannot be used, and both were left out."""
    file: str | None


def resolve(flags: Mapping[str, object], file: str | None) -> Resolved:
    """Read all sources. A bad value in the file or the environment is a finding, and the flags alone are used then.

    :raises ConfigError: a flag is wrong.
    :raises NotSupported: flags ask for a group.
    """
    try:
        config = EngineConfig.resolve(flags, file=file)
    except (ConfigError, NotSupported) as exc:
        config = EngineConfig.resolve(flags, environ={})
        note = Finding(AREA, "used", "note", "flags and defaults alone, because of the problem above")
        return Resolved(config, (Finding.of_error(AREA, "read", exc), note), False, None)
    origins = [config.origin(key) for key in settings_by_key()]
    given = len(origins) - origins.count("default")
    detail = f"{given} given, {len(origins) - given} at their defaults" if given else "all at their defaults"
    first = Finding(AREA, "read", "ok", detail, data={"given": given})
    return Resolved(config, (first, *warning_findings(config.warnings)), True, file)


def warning_findings(warnings: Iterable[str]) -> tuple[Finding, ...]:
    """``W_ENV: NAME is not a setting, ...`` as notes."""
    findings = []
    for line in warnings:
        code, _, text = line.partition(": ")
        if code == "W_METADATA":  # its remedy stands behind it
            text, _, remedy = text.rpartition("; ")
            findings.append(Finding("core", "metadata", "note", text, code=code, remedy=remedy))
            continue
        remedy = "correct the name, or unset it" if code == "W_ENV" else "correct the name, or remove it"
        findings.append(Finding(AREA, "name", "note", text, code=code, remedy=remedy))
    return tuple(findings)


def effective(config: EngineConfig) -> list[dict[str, Any]]:
    """Every setting with its value and where that comes from, in order of declaration."""
    return [
        {
            "key": key,
            "value": _plain(config.get(key)),
            "origin": config.origin(key),
            "environment": declared.env_name(key),
            "values": declared.range_text(),
        }
        for key, declared in settings_by_key().items()
    ]


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
