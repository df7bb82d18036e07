"""``deepinfer plugins``: what is installed and in which state, from metadata and manifests alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from deepinfer_core.cli.state import CommandState, common_options
from deepinfer_core.plugins.registry import PluginRecord, Registry

_HEADER = ("KIND", "NAME", "DISTRIBUTION", "STATE", "DETAIL", "LOCATION")


@click.command("plugins")
@click.argument("name", required=False)
@common_options
@click.pass_obj
def plugins(state: CommandState, name: str | None) -> None:
    """List the installed plugins, or describe those called NAME. No plugin is imported."""
    registry = Registry.build(state.resolve())
    records = registry.records if name is None else registry.named(name)
    if state.json:
        click.echo(json.dumps(as_data(records)))
    elif name is None:
        click.echo(as_table(records))
    else:
        click.echo("\n\n".join(describe(record) for record in records))


def as_table(records: Sequence[PluginRecord]) -> str:
    """The table and its last line (``spec/plugins.md`` 10)."""
    rows = [
        (r.kind, r.name, f"{r.distribution} {r.version}", r.state, r.detail or "-", r.short_location) for r in records
    ]
    widths = [max(len(row[column]) for row in [_HEADER, *rows]) for column in range(len(_HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [_HEADER, *rows]]
    faulty = [record.name for record in records if record.faulty]
    summary = f"{len(records)} plugin{'' if len(records) == 1 else 's'}"
    if faulty:
        summary += f", {len(faulty)} unusable (run: deepinfer doctor {faulty[0]})"
    return "\n".join([*(line.rstrip() for line in lines), f"{summary}. Nothing was imported."])


def describe(record: PluginRecord) -> str:
    """Everything known about one plugin, one field a line."""
    data = {key: value for key, value in record_data(record).items() if value not in ("", [], None)}
    width = max(len(key) for key in data)
    return "\n".join(
        f"{key.ljust(width)}  {', '.join(value) if isinstance(value, list) else value}" for key, value in data.items()
    )


def as_data(records: Sequence[PluginRecord]) -> dict[str, Any]:
    """The same as JSON-serialisable data."""
    return {
        "plugins": [record_data(record) for record in records],
        "unusable": sum(record.faulty for record in records),
    }


def record_data(record: PluginRecord) -> dict[str, Any]:
    return {
        "kind": record.kind,
        "name": record.name,
        "distribution": record.distribution,
        "version": record.version,
        "state": record.state,
        "detail": record.detail,
        "location": str(record.folder) if record.folder else None,
        "editable": record.editable,
        "entry": record.entry.value,
        "api": record.manifest.api if record.manifest else None,
        "manifest": record.manifest.sha256 if record.manifest else None,
        "claims": sorted(record.table.claims),
        "architectures": list(record.table.architectures),
        "phase": record.phase,
        "code": record.code,
        "error": record.reason,
        "reason": record.error.reason if record.error else "",
        "remedy": record.remedy,
    }
