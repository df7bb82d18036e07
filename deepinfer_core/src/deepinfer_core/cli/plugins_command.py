"""``deepinfer plugins``: what is installed and in which state, from metadata and manifests alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from deepinfer_core.cli.root import COMMANDS
from deepinfer_core.cli.state import CommandState, common_options
from deepinfer_core.plugins.commands import PluginCommand, plugin_commands
from deepinfer_core.plugins.record import PluginRecord
from deepinfer_core.plugins.registry import Registry
from deepinfer_core.plugins.unmatched import unmatched_extensions

# Word -> where its click command is, and its line in --help, which must not cost the import.
_INNER = {
    "check": ("deepinfer_core.cli.plugins_check:check", "Examine a plugin before its release."),
    "lock": ("deepinfer_core.cli.plugins_lock:lock", "Write down which plugins are installed, to pin them."),
}
_HEADER = ("KIND", "NAME", "DISTRIBUTION", "STATE", "DETAIL", "LOCATION")


class _SamePathContext(click.Context):
    """The listing is what ``deepinfer plugins`` does, and has no name of its own in messages."""

    @property
    def command_path(self) -> str:
        return self.parent.command_path if self.parent is not None else super().command_path


class _Listing(click.Command):
    context_class = _SamePathContext


class PluginsGroup(click.Group):
    """``deepinfer plugins [NAME]`` lists; ``check`` and ``lock`` are the words that do something else.

    A plugin of such a name is reached as KIND:NAME.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_INNER)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _INNER:
            return None
        module, _, attribute = _INNER[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in _INNER:
            return args[0], self.get_command(ctx, args[0]), args[1:]
        return args[0], listing, args

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _INNER[name][1]) for name in sorted(_INNER)])


@click.command("listing", cls=_Listing, hidden=True)
@click.argument("name")
@common_options
@click.pass_obj
def listing(state: CommandState, name: str) -> None:
    """Describe the plugins called NAME. No plugin is imported."""
    _list(state, name)


@click.group(
    "plugins", cls=PluginsGroup, invoke_without_command=True, subcommand_metavar="[NAME | check PATH | lock [NAME]...]"
)
@common_options
@click.pass_context
def plugins(context: click.Context) -> None:
    """List the installed plugins, or describe those called NAME. No plugin is imported."""
    if context.invoked_subcommand is None:
        _list(context.ensure_object(CommandState), None)


def _list(state: CommandState, name: str | None) -> None:
    config = state.resolve()
    registry = Registry.build(config)
    records = registry.records if name is None else registry.named(name)
    for line in unmatched_extensions(registry.records, config.plugins):
        click.echo(f"deepinfer: {line}", err=True)
    commands = plugin_commands(registry.records, config.plugins, COMMANDS)
    if state.json:
        click.echo(json.dumps(as_data(records, commands)))
    elif name is None:
        click.echo(as_table(records, commands))
    else:
        click.echo("\n\n".join(describe(record, commands) for record in records))


def as_table(records: Sequence[PluginRecord], commands: Sequence[PluginCommand] = ()) -> str:
    """The table, the commands that plugins bring, and the last line (``spec/plugins.md`` 10)."""
    rows = [
        (r.kind, r.name, f"{r.distribution} {r.version}", r.state, r.detail or "-", r.short_location) for r in records
    ]
    widths = [max(len(row[column]) for row in [_HEADER, *rows]) for column in range(len(_HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [_HEADER, *rows]]
    faulty = [record.name or record.distribution for record in records if record.faulty]
    summary = f"{len(records)} plugin{'' if len(records) == 1 else 's'}"
    if faulty:
        summary += f", {len(faulty)} unusable (run: deepinfer doctor {faulty[0]})"
    lines += [_command_line(command) for command in commands]
    return "\n".join([*(line.rstrip() for line in lines), f"{summary}. Nothing was imported."])


def _command_line(command: PluginCommand) -> str:
    return f"command: deepinfer {command.typed} ({command.owner.name}): {command.summary}"


def describe(record: PluginRecord, commands: Sequence[PluginCommand] = ()) -> str:
    """Everything known about one plugin, one field a line."""
    data = {key: value for key, value in record_data(record, commands).items() if value not in ("", [], {}, None)}
    data.pop("unmet", None)  # its detail says it
    width = max(len(key) for key in data)
    return "\n".join(f"{key.ljust(width)}  {_as_text(value)}" for key, value in data.items())


def _as_text(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_as_text(inner)}" for key, inner in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)


def as_data(records: Sequence[PluginRecord], commands: Sequence[PluginCommand] = ()) -> dict[str, Any]:
    """The same as JSON-serialisable data."""
    return {
        "plugins": [record_data(record, commands) for record in records],
        "unusable": sum(record.faulty for record in records),
    }


def record_data(record: PluginRecord, commands: Sequence[PluginCommand] = ()) -> dict[str, Any]:
    return {
        "kind": record.kind,
        "name": record.name,
        "distribution": record.distribution,
        "version": record.version,
        "state": record.state,
        "unmet": record.unmet,
        "detail": record.detail,
        "location": str(record.folder) if record.folder else None,
        "editable": record.editable,
        "entry": record.entry.value,
        "api": record.manifest.api if record.manifest else None,
        "manifest": record.manifest.sha256 if record.manifest else None,
        "contracts": record.contracts,
        "claims": sorted(record.table.claims),
        "claims_on": {arch: sorted(claims) for arch, claims in sorted(record.table.claims_on.items())},
        "architectures": list(record.table.architectures),
        "commands": [command.typed for command in commands if command.owner is record],
        "phase": record.phase,
        "code": record.code,
        "error": record.reason,
        "reason": record.error.reason if record.error else "",
        "remedy": record.remedy,
    }
