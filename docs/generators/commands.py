"""The page of commands: the help of each, at a fixed width."""

from __future__ import annotations

from collections.abc import Iterator

import click

from deepinfer_core.cli.root import root
from generators.markdown import NOTICE

HELP_WIDTH = 100


def commands_page() -> str:
    lines = ["# Commands", "", NOTICE, "From a clone, the command is `.venv/bin/deepinfer`."]
    for title, text in _helps(root, None, "deepinfer"):
        lines += ["", f"## {title}", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


def _helps(command: click.Command, parent: click.Context | None, name: str) -> Iterator[tuple[str, str]]:
    context = click.Context(command, parent, name, terminal_width=HELP_WIDTH, max_content_width=HELP_WIDTH, color=False)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None and not found.hidden:
                yield from _helps(found, context, inner)
