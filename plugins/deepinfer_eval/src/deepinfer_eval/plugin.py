"""The hook of the extension ``eval``."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_core import hookimpl
from deepinfer_core.types import CommandSpec


@hookimpl
def deepinfer_cli_commands() -> Sequence[CommandSpec]:
    return [CommandSpec("eval", "deepinfer_eval.command:eval_group", "Answer a data set, and score the answers.")]
