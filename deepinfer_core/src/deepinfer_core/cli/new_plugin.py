"""``deepinfer new-plugin``: write a package with one plugin, ready to install."""

from __future__ import annotations

import json
import shlex
from pathlib import Path, PurePosixPath

import click

from deepinfer_core.cli.root import COMMANDS
from deepinfer_core.cli.state import CommandState, common_options
from deepinfer_core.new_plugin.naming import KINDS, Names

_LINES = "| deepinfer generate --format jsonl -"
_TRY = {
    "backend": 'deepinfer generate --backend {name} "import os"',
    "model": 'deepinfer generate --model-plugin {name} "The "',
    "sampler": """echo '{{"prompt": "import os", "sampler": "{name}"}}' """ + _LINES,
    "logits_filter": """echo '{{"prompt": "import os", "logits_filters": "{name}"}}' """ + _LINES,
    "grammar": 'deepinfer generate --grammar-engine {name} --regex "yes|no" "import os"',
    "scorer": "deepinfer eval score answers.jsonl --scorer {name}",
    "extension": "deepinfer --plugin {name} {command} --help",
}
"""A first command with the plugin."""


@click.command("new-plugin")
@click.argument("kind", type=click.Choice(tuple(KINDS)))
@click.argument("name")
@click.option("--dir", "parent", default=".", metavar="DIR", help="Folder to make the project in.  [default: .]")
@common_options
@click.pass_obj
def new_plugin(state: CommandState, kind: str, name: str, parent: str) -> None:
    """Write a package with a KIND called NAME, in a new folder deepinfer-NAME.

    The package installs, works and passes level "smoke" of the conformance kit as it is. Nothing that exists is
    overwritten.
    """
    from deepinfer_core.new_plugin.facts import read_facts
    from deepinfer_core.new_plugin.naming import check_name
    from deepinfer_core.new_plugin.rendering import render
    from deepinfer_core.new_plugin.writing import check_target, write

    names = check_name(kind, name, COMMANDS)
    target = check_target(Path(parent), names.distribution)
    files = render(names, read_facts(names.kind))
    write(target, files)
    if state.json:
        click.echo(json.dumps(as_data(names, target, files)))
    else:
        click.echo(as_text(names, target, files))


def next_commands(names: Names, target: Path) -> list[str]:
    """What to run now, in order."""
    return [
        f"cd {shlex.quote(str(target))}",
        "pip install -e '.[test]'",
        "deepinfer plugins check .",
        f"deepinfer plugins {names.name}",
        _TRY[names.kind].format(name=names.name, command=names.command),
        "pytest",
    ]


def as_text(names: Names, target: Path, files: dict[PurePosixPath, bytes]) -> str:
    """The files written, and what to run next."""
    lines = [f"{names.kind.replace('_', ' ')} {names.name} in {target}:"]
    lines += [f"  {path}" for path in files]
    lines += ["next:", *(f"  {command}" for command in next_commands(names, target))]
    return "\n".join(lines)


def as_data(names: Names, target: Path, files: dict[PurePosixPath, bytes]) -> dict[str, object]:
    """The same as JSON-serialisable data."""
    return {
        "kind": names.kind,
        "name": names.name,
        "distribution": names.distribution,
        "package": names.package,
        "folder": str(target),
        "files": [str(path) for path in files],
        "next": next_commands(names, target),
    }
