"""The command ``op-calls``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click
from deepinfer_core.commands import CommandState, common_options

from deepinfer_counting_backend.report import as_table, read_report


@click.command("op-calls")
@click.argument("file", type=click.Path(path_type=Path))
@common_options
@click.pass_obj
def op_calls(state: CommandState, file: Path) -> None:
    """Show the calls that backend counting wrote to FILE: op, calls, time, and who provided it."""
    counts = read_report(file)
    if state.json:
        click.echo(json.dumps({op: dataclasses.asdict(count) for op, count in counts.items()}))
    else:
        click.echo(as_table(counts))
