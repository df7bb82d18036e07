"""Bounded replay as the engine sets it up: which rows the decoder half keeps (``spec/model.md`` 5.3).

``keep`` rows at the end of a prompt are enough for every decode step, also behind a roll-back of ``backtrack`` tokens,
if ``keep >= window + backtrack``.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError, NotSupported
from deepinfer_core.types import ReplayModeName, SchedulerHints

ROOM = 12
"""Positions that may be taken back which the default of ``keep_tokens`` has room for; more where more are needed."""


@frozen
class BoundedReplay:
    """``keep``: rows that the decoder half keeps, 0 with mode ``off``. ``window``: that of the model."""

    mode: ReplayModeName = "off"
    keep: int = 0
    window: int = 0

    @property
    def hit_length(self) -> int:
        """Positions of a prefix hit that run again at least."""
        return self.window

    @property
    def least_before_kept(self) -> int:
        """A prompt must be longer to save anything by a prefix hit: its kept rows are computed in any case."""
        return self.keep

    @property
    def core_settings(self) -> dict[str, Any]:
        """Of ``deepinfer_native.CoreConfig``."""
        return {"replay_mode": self.mode, "replay_keep": self.keep} if self.keep else {}


def bounded_replay(config: EngineConfig, hints: SchedulerHints, num_draft: int) -> BoundedReplay:
    """What the settings ask for.

    :raises NotSupported: the model runs all rows of a prompt in all layers.
    :raises ConfigError: ``keep_tokens`` is too small, or given without a mode that has a use for it.
    """
    mode, keep = config.replay_mode, config.keep_tokens
    if mode == "off":
        if keep is not None:
            raise ConfigError(
                f"keep_tokens is {keep}, and replay_mode is off",
                reason="with mode off the decoder half runs every row",
                remedy="set --replay-mode compact, or leave --keep-tokens out",
                details={"field": "keep_tokens", "value": keep},
            )
        return BoundedReplay(window=hints.window)
    if not hints.encoder_layers or not hints.window:
        raise NotSupported(
            f"replay_mode is {mode!r}, but this model runs every row of a prompt in every layer",
            reason="its plugin gives no hint encoder_layers: no half of its layers can do with the last rows",
            remedy="leave --replay-mode out",
            details={"field": "replay_mode", "value": mode},
        )
    backtrack = max(hints.backtrack, num_draft + 1)
    least = hints.window + backtrack
    if keep is None:
        keep = hints.window + max(backtrack, ROOM)
    if keep < least:
        raise ConfigError(
            f"keep_tokens is {keep}, the least for this model is {least}",
            reason=f"decode steps read a window of {hints.window} positions, up to {backtrack} positions further back "
            "when drafts are rejected, and all of them must be rows that the decoder half computed",
            remedy=f"set --keep-tokens to {least} or more, or leave it out",
            details={"field": "keep_tokens", "value": keep, "least": least},
        )
    return BoundedReplay(mode, keep, hints.window)
