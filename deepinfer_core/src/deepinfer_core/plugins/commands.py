"""Commands of plugins: whose a name is, from the manifests alone, and what it runs, from its plugin.

``DISTRIBUTION.COMMAND`` always names one command. The short name works where it can mean nothing else and the plugin is
known to the person: first party, enabled, or allowed by name. What merely is installed never runs for a word that was
typed (``spec/plugins.md`` 8 and 13).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from attrs import frozen

from deepinfer_core.config import PluginSettings
from deepinfer_core.errors import CommandUsageError, DeepInferError, PluginConflict, PluginError
from deepinfer_core.plugins.failure import plugin_failure
from deepinfer_core.plugins.names import FIRST_PARTY_DISTRIBUTIONS
from deepinfer_core.plugins.record import PluginRecord
from deepinfer_core.plugins.torch_extensions import left_out
from deepinfer_core.settings import did_you_mean

if TYPE_CHECKING:
    import click

    from deepinfer_core.plugins.manager import PluginManager


@frozen
class PluginCommand:
    """A command that a manifest declares."""

    name: str
    summary: str
    owner: PluginRecord
    rivals: tuple[PluginRecord, ...] = ()
    """Other usable plugins that have a command of this name."""
    is_built_in: bool = False
    """The core has a command of this name."""
    is_known: bool = True
    """The plugin is first party, enabled, or allowed by name."""

    @property
    def long_name(self) -> str:
        return f"{self.owner.distribution}.{self.name}"

    @property
    def typed(self) -> str:
        """The shortest name that runs it."""
        return self.name if self.is_known and not self.rivals and not self.is_built_in else self.long_name


def plugin_commands(
    records: Sequence[PluginRecord], settings: PluginSettings, built_in: Collection[str]
) -> list[PluginCommand]:
    """The commands of all usable plugins, by the name that runs them."""
    declared = [(item, record) for record in records if record.usable for item in record.table.commands]
    commands = [
        PluginCommand(
            item.name,
            item.summary,
            record,
            tuple(other for same, other in declared if same.name == item.name and other is not record),
            item.name in built_in,
            _is_known(record, settings),
        )
        for item, record in declared
    ]
    return sorted(commands, key=lambda command: command.typed)


def _is_known(record: PluginRecord, settings: PluginSettings) -> bool:
    if record.distribution in FIRST_PARTY_DISTRIBUTIONS:
        return True
    named = {record.name, record.key, record.distribution} & set(settings.allow or ())
    return bool(named) or (record.kind == "extension" and record.name in settings.enable)


def find_command(
    name: str, records: Sequence[PluginRecord], settings: PluginSettings, built_in: Collection[str]
) -> PluginCommand:
    """The command that a person typed.

    :raises PluginConflict: several plugins have the short name; says what to type.
    :raises CommandUsageError: nobody has the name, or its plugin is not known to the person.
    :raises DeepInferError: the plugin cannot be used; the error is its own.
    """
    commands = plugin_commands(records, settings, built_in)
    found = [command for command in commands if name in (command.typed, command.long_name)]
    if found:
        return found[0]
    short = [command for command in commands if command.name == name]
    if short and short[0].rivals:
        raise _shared(name, short)
    if short:
        raise _unknown_owner(short[0])
    for record in records:
        names = [item.name for item in record.table.commands]
        if record.error is not None and name in (*names, *(f"{record.distribution}.{item}" for item in names)):
            raise record.error
    known = [*built_in, *(command.typed for command in commands)]
    of_plugins = ", ".join(command.typed for command in commands)
    raise CommandUsageError(
        f"no command named {name!r}{did_you_mean(name, known)}",
        reason=f"commands: {', '.join(sorted(built_in))}" + (f"; of plugins: {of_plugins}" if of_plugins else ""),
        remedy="run: deepinfer --help",
        details={"command": name},
    )


def _shared(name: str, commands: Sequence[PluginCommand]) -> PluginConflict:
    owners = ", ".join(command.owner.title for command in commands)
    return PluginConflict(
        f"command {name!r} is provided by {'two' if len(commands) == 2 else len(commands)} plugins: {owners}",
        reason="its short name is off, because the order of installation does not decide",
        remedy="run: " + ", or ".join(f"deepinfer {command.long_name}" for command in commands),
        details={"command": name, "commands": [command.long_name for command in commands]},
    )


def _unknown_owner(command: PluginCommand) -> CommandUsageError:
    owner = command.owner
    enable = f"deepinfer --plugin {owner.name} {command.name}"
    if owner.kind != "extension":
        enable = f"name {owner.name} in plugins.allow (DEEPINFER_PLUGINS)"
    return CommandUsageError(
        f"command {command.name!r} is of {owner.title}, which nobody enabled",
        reason="a plugin runs when it is named, and not because it is installed",
        remedy=f"run: deepinfer {command.long_name}, or {enable}",
        details={"command": command.name, "plugin": owner.key},
    )


def load_command(manager: PluginManager, command: PluginCommand) -> click.Command:
    """Load the plugin, ask it what the command runs, and import that.

    :raises DeepInferError: the plugin cannot be loaded, or gives something that is no command.
    """
    import click

    from deepinfer_core.plugins.hooks import Hooks  # only to run one: listing them pays for no hook

    owner = command.owner
    if not manager.load(owner):
        raise owner.error or PluginError(f"{owner.title} cannot be loaded")
    [spec] = [spec for spec in Hooks(manager).cli_commands(owner) if spec.name == command.name]
    module, _, attribute = spec.target.partition(":")
    try:
        with left_out():
            target = getattr(import_module(module), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # also SystemExit, and a panic of a compiled extension
        raise _failed(owner, command, exc) from exc
    if not isinstance(target, click.Command):
        raise PluginError(
            f"{spec.target} of {owner.title} is a {type(target).__name__}, expected a click command",
            reason=f"deepinfer_cli_commands names it for command {command.name!r}",
            remedy=f"ask the authors of {owner.distribution}, or install another release of it",
            details={"plugin": owner.key, "command": command.name},
        )
    return target


def _failed(owner: PluginRecord, command: PluginCommand, exc: BaseException) -> DeepInferError:
    return plugin_failure(owner, f"the import of command {command.name}", exc)
