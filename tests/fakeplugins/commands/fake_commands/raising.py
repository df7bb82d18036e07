"""Raises when it is asked for its commands."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_cli_commands():
    raise ValueError("raised by deepinfer_cli_commands")
