"""Gives another command than its manifest declares."""

from deepinfer_core import hookimpl
from deepinfer_core.types import CommandSpec


@hookimpl
def deepinfer_cli_commands():
    return [CommandSpec("another-command", "fake_commands.broken:run", "Runs.")]
