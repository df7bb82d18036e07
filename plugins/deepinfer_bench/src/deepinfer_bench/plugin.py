"""The hook of the extension ``bench``."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_core.hookspecs import hookimpl
from deepinfer_core.types import CommandSpec


@hookimpl
def deepinfer_cli_commands() -> Sequence[CommandSpec]:
    return [CommandSpec("bench", "deepinfer_bench.command:bench", "Measure prefill and decode steps.")]
