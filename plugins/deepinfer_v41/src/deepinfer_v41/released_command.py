"""``deepinfer released DIR``: the released model's sizes as a model directory without weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from deepinfer_core.cli.streams import unwritable
from deepinfer_core.commands import CommandState, common_options
from deepinfer_core.errors import EXIT_OK, CommandUsageError
from deepinfer_v41.cut_down import MODEL_FILES, write_model
from deepinfer_v41.released import RELEASED


@contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """What a failure or Ctrl-C leaves of a folder that was empty goes, or the same command would be refused by it."""
    was_there = folder.is_dir()
    try:
        yield
    except BaseException:
        with suppress(OSError):  # the failure itself is what is told
            for name in MODEL_FILES:  # and nothing that somebody else put there meanwhile
                (folder / name).unlink(missing_ok=True)
            if not was_there:
                folder.rmdir()
        raise


@click.command("released")
@click.argument("folder", metavar="DIR")
@common_options
@click.pass_obj
def released(state: CommandState, folder: str) -> int:
    """Write the configuration of the released V4.1 model into DIR, and a tokenizer with a word for each id.

    For measurements with --load-format dummy: no weights are written, and what the model says with random ones means
    nothing. Exit status: 0 ok, 2 DIR holds something, 74 it cannot be written.
    """
    if not folder:
        raise CommandUsageError("the folder has no name", remedy="give a new folder")
    path = Path(folder)
    try:
        for entry in path.iterdir() if path.is_dir() else ():
            reason = "what is there is not written over"
            raise CommandUsageError(f"{folder} holds {entry.name}", reason=reason, remedy="give a new folder")
        with _whole(path):
            write_model(path, RELEASED)
    except OSError as err:
        raise unwritable(folder, err, "give a new folder in a place that can be written") from err
    text = RELEASED["text_config"]
    layers, width = text["num_hidden_layers"], text["hidden_size"]
    if state.json:
        click.echo(json.dumps({"path": str(path), "layers": layers, "hidden_size": width}))
    else:
        click.echo(f"{path}: {layers} layers, width {width:,}, no weights")
    return EXIT_OK
