"""``--deterministic``: what is promised, and the settings that would break it (``spec/engine.md`` 7.6).

``run``: a fresh engine with the same settings gives the same tokens for the same call. ``batch``: a prompt's tokens
depend on the prompt, its parameters and its seed alone, whatever runs beside it.
"""

from __future__ import annotations

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError, UnsupportedFeature
from deepinfer_core.interfaces import Backend
from deepinfer_core.types import SchedulerHints

BATCH_INVARIANT = "batch_invariant"


def check_deterministic(config: EngineConfig, hints: SchedulerHints, backend: Backend, num_draft: int) -> None:
    """Refuse what contradicts the promise of ``config.deterministic``.

    :raises ConfigError: a setting lets measured times or other requests decide about tokens.
    :raises UnsupportedFeature: the promise needs a row's bits to be the same in every batch, and the backend does not
        claim that.
    """
    promise = config.deterministic
    if promise == "off":
        return
    by_time = num_draft > 0 and config.draft_schedule == "confidence"
    if by_time and config.verification == "rejection":
        raise _contradiction(
            promise,
            "draft_schedule",
            "confidence with rejection verification",
            "how many drafts are verified then follows measured times, and decides which draws a token comes from",
            "set --verify coupled, or --draft-schedule fixed",
        )
    if promise == "run" and config.target_itl_ms is not None and num_draft > 0 and config.verification == "rejection":
        raise _contradiction(
            promise,
            "target_itl_ms",
            "target_itl_ms with rejection verification",
            "chunks then follow measured times, and with them who is preempted and goes on with other draws",
            "set --verify coupled, or leave --target-itl-ms out",
        )
    if config.prefix_cache and hints.window and config.prefix_replay != "exact":
        raise _contradiction(
            promise,
            "prefix_cache",
            "a prefix cache",
            f"behind a hit the last {hints.window} positions run again with shorter windows, so tokens would depend on"
            " what ran before",
            "set --prefix-replay exact, leave --prefix-cache out, or set --deterministic off",
        )
    if promise == "batch":
        needs = "its rows must have the same bits in every batch"
    elif by_time:
        needs = "lengths by confidence follow measured times, so the rows of a step differ from run to run"
    elif config.target_itl_ms is not None:
        needs = "with target_itl_ms chunks follow measured times, so the rows of a step differ from run to run"
    else:
        return
    if not is_batch_invariant(backend):
        raise UnsupportedFeature(
            f"deterministic is {promise!r}, but backend {backend.name!r} does not claim {BATCH_INVARIANT}",
            reason=needs,
            remedy="use --backend cpu, or set --deterministic "
            + ("run" if promise == "batch" else "off, or leave out what follows measured times"),
            details={"field": "deterministic", "capability": BATCH_INVARIANT},
        )


def is_batch_invariant(backend: Backend) -> bool:
    """Whether the backend claims that a row's bits do not depend on the other rows of its step."""
    return BATCH_INVARIANT in backend.capabilities.features


def _contradiction(promise: str, field: str, what: str, reason: str, remedy: str) -> ConfigError:
    return ConfigError(
        f"deterministic is {promise!r}, which rules out {what}", reason=reason, remedy=remedy, details={"field": field}
    )
