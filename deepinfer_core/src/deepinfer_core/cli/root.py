"""The ``deepinfer`` command: global options, and subcommands that are imported when they run."""

from __future__ import annotations

from importlib import import_module

import click

from deepinfer_core import API_VERSION
from deepinfer_core.cli.state import CommandState, common_options, setting_options

# Name -> where the click command is, and its line in --help, which must not cost the import.
COMMANDS = {
    "audit": ("deepinfer_core.cli.audit:audit", "Test whether the tokens of a result file were drawn as it says."),
    "chat": ("deepinfer_core.cli.chat:chat", "Talk with a model."),
    "doctor": ("deepinfer_core.cli.doctor:doctor", "Say what works here, what does not, and what to do."),
    "generate": ("deepinfer_core.cli.generate:generate", "Generate text for prompts."),
    "new-plugin": ("deepinfer_core.cli.new_plugin:new_plugin", "Write a package with a plugin, ready to install."),
    "replay": ("deepinfer_core.cli.replay:replay", "Run the requests of a result file again, and compare."),
    "plugins": (
        "deepinfer_core.cli.plugins_command:plugins",
        "List, check and pin plugins; import none.",
    ),
}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        command = self.get_command(ctx, name) if name in COMMANDS else _of_plugin(ctx, name)
        return name, command, args[1:]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])
        formatter.write_paragraph()
        formatter.write_text("Plugins may bring more: deepinfer plugins lists them.")


def _of_plugin(ctx: click.Context, name: str) -> click.Command:
    """The command of a plugin: only for a name that the core does not have, so that nothing else pays for it."""
    from deepinfer_core.plugins.commands import find_command, load_command
    from deepinfer_core.plugins.manager import PluginManager

    state = ctx.ensure_object(CommandState)
    config = state.resolve()
    manager = PluginManager.from_config(config)
    found = find_command(name, manager.registry.records, config.plugins, COMMANDS)
    command = load_command(manager, found)
    state.owner = found.owner
    return command


@click.group("deepinfer", cls=LazyGroup, invoke_without_command=True, context_settings={"max_content_width": 100})
@click.option("--version", is_flag=True, help="Print the versions and exit.")
@common_options
@setting_options("backend", "emulate", "model")
@click.pass_context
def root(context: click.Context, version: bool) -> None:
    """Run DeepSeek-V4.1-class models. Options of this level are accepted after the command as well."""
    state = context.ensure_object(CommandState)
    if version:
        found = versions()
        if state.json:
            import json

            click.echo(json.dumps(found))
        else:
            click.echo("\n".join(f"{name} {text}" for name, text in found.items()))
        context.exit(0)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        context.exit(0)


def option_arity(group: click.Group, name: str | None = None) -> dict[str, int]:
    """Option -> how many words follow it as its value, of ``group`` or of its command ``name``."""
    context = click.Context(group)
    command = group if name is None else group.get_command(context, name)
    return {
        option: 0 if parameter.is_flag else parameter.nargs
        for parameter in (command.params if command is not None else ())
        if isinstance(parameter, click.Option)
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


def versions() -> dict[str, str]:
    """Versions of the distributions and of the plugin API; nothing is imported for it."""
    import platform
    from importlib import metadata

    def version_of(name: str) -> str:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return "not installed"

    return {
        "core": version_of("deepinfer-core"),
        "api": f"{API_VERSION[0]}.{API_VERSION[1]}",
        "native": version_of("deepinfer-native"),
        "contracts": version_of("deepinfer-contracts"),
        "python": platform.python_version(),
    }
