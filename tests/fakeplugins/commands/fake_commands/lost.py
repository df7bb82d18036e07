"""Its command is not where it says."""

from deepinfer_core import hookimpl
from deepinfer_core.types import CommandSpec


@hookimpl
def deepinfer_cli_commands():
    return [CommandSpec("lost-command", "fake_commands.nowhere:run", "Runs.")]
