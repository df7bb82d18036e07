"""``deepinfer plugins check``: examine a plugin before its release."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from deepinfer_core.cli.root import COMMANDS
from deepinfer_core.cli.state import CommandState, common_options
from deepinfer_core.errors import EXIT_OK, EXIT_SOME_FAILED

if TYPE_CHECKING:
    from deepinfer_core.plugins.check.notes import Note
    from deepinfer_core.plugins.check.subject import Subject


@click.command("check")
@click.argument("path", type=click.Path(path_type=Path))
@common_options
@click.pass_obj
def check(state: CommandState, path: Path) -> int:
    """Examine the plugin at PATH: a source tree, a wheel, or the .dist-info folder of an installed one.

    Reads pyproject.toml or the metadata, entry points, deepinfer.toml, and the modules as text, and tells every problem
    at once. Nothing is imported, built or installed. Exit status: 0 no problem, 1 problems, 2 PATH is no plugin.
    """
    from deepinfer_core.plugins.check.checks import examine

    subject, notes = examine(path, COMMANDS)
    if state.json:
        click.echo(json.dumps(as_data(subject, notes)))
    else:
        click.echo(as_text(subject, notes))
    return EXIT_SOME_FAILED if _count(notes, "problem") else EXIT_OK


def as_text(subject: Subject, notes: Sequence[Note]) -> str:
    """A line for each note, its remedy below it, and the sum."""
    marks = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}
    width = max(len(note.check) for note in notes)
    lines = [f"{subject.name or 'no name'} {subject.version or 'no version'} ({subject.form} {subject.path})"]
    for note in notes:
        start = f"  {marks[note.status].ljust(7)}  {note.check.ljust(width)}  "
        lines.append(start + note.detail)
        if note.remedy:
            lines.append(f"{' ' * len(start)}remedy: {note.remedy}")
    problems, warnings = _count(notes, "problem"), _count(notes, "warning")
    lines.append(f"{_counted(problems, 'problem')}, {_counted(warnings, 'warning')}. Nothing was imported.")
    return "\n".join(lines)


def as_data(subject: Subject, notes: Sequence[Note]) -> dict[str, Any]:
    """The same as JSON-serialisable data."""
    return {
        "distribution": subject.name,
        "version": subject.version,
        "form": subject.form,
        "path": str(subject.path),
        "problems": _count(notes, "problem"),
        "warnings": _count(notes, "warning"),
        "notes": [attrs.asdict(note) for note in notes],
    }


def _count(notes: Sequence[Note], status: str) -> int:
    return sum(note.status == status for note in notes)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
