"""Where options such as ``--out`` write: a path, or ``-`` for standard output."""

from __future__ import annotations

import click


def output_file(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Callback of an option: the path as typed, for ``-`` the device; a file of that name is ``./-``."""
    return "/dev/stdout" if value == "-" else value
