"""Bounded replay as the engine sets it up: rows that the decoder half keeps, and positions of a prefix hit that run
again (``spec/model.md`` 5).

``keep`` rows at the end of a prompt are enough for every decode step, also behind a roll-back of ``backtrack`` tokens,
if ``keep >= window + backtrack``. Windows behind a hit are those of a cold run if ``window + (n - 1) * (window - 1)``
positions ran again, ``n`` being the layers that read one another's windows: what the first layer stores is right from
the start of the replay on, that of each further layer ``window - 1`` positions later.
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
    """``keep``: rows that the decoder half keeps, 0 with mode ``off``. ``whole`` and ``kept``: positions of a prefix
    hit that a request runs again in mode ``off`` and in the others; ``is_exact``: windows behind them are right, and
    ``kept`` counts in front of the first kept row where that comes first."""

    mode: ReplayModeName = "off"
    keep: int = 0
    whole: int = 0
    kept: int = 0
    is_exact: bool = False

    @property
    def hit_length(self) -> int:
        """Positions of a prefix hit that run again at least, in the engine's mode."""
        return self.kept if self.keep else self.whole

    @property
    def least_before_kept(self) -> int:
        """A prompt must be longer to save anything by a prefix hit: its kept rows are computed in any case."""
        return self.keep + (self.kept if self.keep and self.is_exact else 0)

    @property
    def core_settings(self) -> dict[str, Any]:
        """Of ``deepinfer_native.CoreConfig``."""
        rows = {"replay_mode": self.mode, "replay_keep": self.keep} if self.keep else {}
        hits = {"replay_exact": True, "replay_len": self.whole, "replay_len_kept": self.kept} if self.is_exact else {}
        return {**rows, **hits}


def bounded_replay(config: EngineConfig, hints: SchedulerHints, num_draft: int) -> BoundedReplay:
    """What the settings ask for.

    :raises NotSupported: the model runs all rows of a prompt in all layers, or does not say how many layers it has.
    :raises ConfigError: ``keep_tokens`` is too small, or a setting is given without the one that it belongs to.
    """
    keep = _kept_rows(config, hints, num_draft)
    if config.prefix_replay == "window":
        return BoundedReplay(config.replay_mode, keep, hints.window, hints.window)
    if not config.prefix_cache:
        raise ConfigError(
            f"prefix_replay is {config.prefix_replay!r}, and prefix_cache is off",
            remedy="set --prefix-cache, or leave --prefix-replay out",
            details={"field": "prefix_replay", "value": config.prefix_replay},
        )
    if hints.window and not hints.window_layers:
        raise NotSupported(
            "prefix_replay is 'exact', but the model does not say how many layers read one another's windows",
            reason="its plugin gives no hint window_layers",
            remedy="set --prefix-replay window, or leave --prefix-cache out",
            details={"field": "prefix_replay", "value": config.prefix_replay},
        )
    whole, kept = (exact_length(hints.window, n) for n in (hints.window_layers, hints.encoder_layers))
    return BoundedReplay(config.replay_mode, keep, whole, kept, is_exact=bool(hints.window))


def exact_length(window: int, layers: int) -> int:
    """Positions that run again so that the windows behind them, in all of ``layers``, are those of a cold run."""
    return window + max(0, layers - 1) * (window - 1) if window else 0


def _kept_rows(config: EngineConfig, hints: SchedulerHints, num_draft: int) -> int:
    mode, keep = config.replay_mode, config.keep_tokens
    if mode == "off":
        if keep is not None:
            raise ConfigError(
                f"keep_tokens is {keep}, and replay_mode is off",
                reason="with mode off the decoder half runs every row",
                remedy="set --replay-mode compact, or leave --keep-tokens out",
                details={"field": "keep_tokens", "value": keep},
            )
        return 0
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
    return keep
