"""Its command fails."""

import click

from deepinfer_core import hookimpl
from deepinfer_core.types import CommandSpec


@hookimpl
def deepinfer_cli_commands():
    return [CommandSpec("broken-command", "fake_commands.broken:run", "Runs.")]


@click.command("broken-command")
def run():
    raise OSError("libcommand.so: cannot open")
