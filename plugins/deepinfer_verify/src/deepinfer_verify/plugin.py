"""The hooks of the extension ``verification``."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_core.hookspecs import hookimpl
from deepinfer_core.types import CommandSpec


@hookimpl
def deepinfer_cli_commands() -> Sequence[CommandSpec]:
    ppl = "Compare the perplexity of decoding with a baseline, exactly."
    replay = "Compare bounded replay of the decoder half with its rule."
    return [
        CommandSpec("ppl", "deepinfer_verify.ppl.command:ppl", ppl),
        CommandSpec("verify-replay", "deepinfer_verify.replay.command:verify_replay", replay),
    ]
