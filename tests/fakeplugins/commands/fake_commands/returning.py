"""Returns something else than commands."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_cli_commands():
    return {"instead": "of it"}
