"""The page of commands: the help of each at a fixed width, and that of commands which plugins of ours bring."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import click

from deepinfer_core.cli.root import root
from generators.markdown import NOTICE

HELP_WIDTH = 100
PLUGINS = ("deepinfer_bench", "deepinfer_eval", "deepinfer_v41", "deepinfer_verify")
"""Their commands are imported without torch."""


def commands_page() -> str:
    lines = ["# Commands", "", NOTICE, "From a clone, the command is `.venv/bin/deepinfer`."]
    for title, text in _helps(root, None, "deepinfer"):
        lines += ["", f"## {title}", "", "```text", text, "```"]
    for package in PLUGINS:
        for spec in import_module(f"{package}.plugin").deepinfer_cli_commands():
            module, _, attribute = spec.target.partition(":")
            command = getattr(import_module(module), attribute)
            for title, text in _helps(command, click.Context(root, None, "deepinfer"), spec.name):
                owner = package.replace("_", "-")
                lines += ["", f"## {title}", "", f"A command of `{owner}`.", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


def _helps(command: click.Command, parent: click.Context | None, name: str) -> Iterator[tuple[str, str]]:
    context = click.Context(command, parent, name, terminal_width=HELP_WIDTH, max_content_width=HELP_WIDTH, color=False)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None and not found.hidden:
                yield from _helps(found, context, inner)
