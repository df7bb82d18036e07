"""``deepinfer plugins lock``: write down which plugins are installed, for ``plugins.lock``."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
import click

from deepinfer_core.cli.output_file import output_file
from deepinfer_core.cli.state import CommandState, common_options
from deepinfer_core.cli.streams import unwritable
from deepinfer_core.errors import OutputError
from deepinfer_core.plugins.lock import PluginLock
from deepinfer_core.plugins.registry import Registry
from deepinfer_core.whole_file import write_whole


@click.command("lock")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--out", metavar="FILE", callback=output_file, help="File to write; standard output without.")
@common_options
@click.pass_obj
def lock(state: CommandState, names: tuple[str, ...], out: str | None) -> None:
    """Write the lock of the plugins called NAME, or of all that can be used.

    For each: kind, name, distribution, version, entry point, SHA-256 of its manifest, plugin API and contracts. A run
    with --plugin-lock FILE uses exactly these, and refuses before anything is imported when one differs. No plugin is
    imported.
    """
    config = state.resolve()
    registry = Registry.build(attrs.evolve(config, plugins=attrs.evolve(config.plugins, lock=None)))
    records = registry.records
    if names:
        keys = {id(record) for name in names for record in registry.named(name)}
        records = [record for record in records if id(record) in keys]
        for record in records:
            if record.error is not None:
                raise record.error
    left_out = [record.origin for record in records if record.faulty]
    if left_out:
        sys.stderr.write(f"deepinfer: not locked, because they cannot be used: {', '.join(left_out)}\n")
    text = PluginLock.of(record for record in records if record.usable).as_text()
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        write_whole(Path(out), text)
    except OSError as exc:
        if isinstance(exc, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            raise OutputError(
                f"cannot write {out}",
                reason=exc.strerror or str(exc),
                remedy="give --out a file in a folder that exists",
            ) from exc
        raise unwritable(str(out), exc) from exc
