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

A command that generates takes the options of ``deepinfer generate`` with ``sampling_options`` and
``setting_options(*ENGINE_SETTINGS)``; ``given_sampling(context)`` has the sampling fields. ``json_line`` makes a line
of JSON lines, ``Progress`` shows on a terminal how far it is, and an option with the callback ``output_file`` takes
``-`` for standard output.
"""

from __future__ import annotations

from deepinfer_core.cli.chat_options import given_chat, thinking_options
from deepinfer_core.cli.generate import SETTINGS as ENGINE_SETTINGS
from deepinfer_core.cli.generate import load_llm
from deepinfer_core.cli.json_lines import json_line
from deepinfer_core.cli.output_file import output_file
from deepinfer_core.cli.progress import Progress
from deepinfer_core.cli.sampling_options import given_sampling, sampling_options
from deepinfer_core.cli.state import CommandState, common_options, setting_options

__all__ = [
    "ENGINE_SETTINGS",
    "CommandState",
    "Progress",
    "common_options",
    "given_chat",
    "given_sampling",
    "json_line",
    "load_llm",
    "output_file",
    "sampling_options",
    "setting_options",
    "thinking_options",
]
