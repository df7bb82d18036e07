"""What a plugin's command needs of the command line: its state, and the options that every command has.

::

    @click.command("stock")
    @click.argument("folder")
    @common_options                      # --config, --json, --debug and the plugin controls
    @click.pass_obj
    def stock(state: CommandState, folder: str) -> int:
        ...                              # the exit status; a DeepInferError is printed as any other

A command that runs a model resolves its settings and calls ``load_llm``, as ``deepinfer generate`` does: warnings go to
standard error, and what is wrong is raised before weights are read.
"""

from __future__ import annotations

from deepinfer_core.cli.generate import load_llm
from deepinfer_core.cli.state import CommandState, common_options, setting_options

__all__ = ["CommandState", "common_options", "load_llm", "setting_options"]
