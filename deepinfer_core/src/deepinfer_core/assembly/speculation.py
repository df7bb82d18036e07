"""How many drafts an engine verifies, and whether its parts can do it (``spec/engine.md`` 5.8, ``sampling.md`` 2.7)."""

from __future__ import annotations

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError, NotSupported
from deepinfer_core.interfaces import Model, Sampler
from deepinfer_core.types import SchedulerHints


def draft_length(config: EngineConfig, hints: SchedulerHints, model: Model) -> int:
    """Drafts of a sequence in a decode step (K).

    :raises NotSupported: the model has no drafter.
    :raises ConfigError: it proposes fewer drafts at once, or its caches cannot take so many back.
    """
    wanted = config.draft_tokens
    if not wanted:
        return hints.num_draft  # above 0 where the sampler makes drafts of its own
    block = getattr(model, "draft_block", 0)
    details = {"field": "draft_tokens", "value": wanted, "limit": block}
    if not block:
        raise NotSupported(
            f"draft_tokens is {wanted}, but this model offers no drafts",
            reason="its plugin has no draft head, or its checkpoint holds no weights of one",
            remedy="leave --draft-tokens out",
            details=details,
        )
    if wanted > block:
        raise ConfigError(
            f"draft_tokens is {wanted}, the limit of this model is {block}",
            reason=f"its draft head proposes a block of {block} tokens at once",
            remedy=f"set --draft-tokens to a number from 0 to {block}",
            details=details,
        )
    if wanted + 1 > hints.backtrack:
        raise ConfigError(
            f"draft_tokens is {wanted}, the caches of this model allow {hints.backtrack - 1}",
            reason=f"its ring buffers take back {hints.backtrack} positions, and a step writes {wanted + 1}",
            remedy=f"set --draft-tokens to {hints.backtrack - 1} or less",
            details={**details, "limit": hints.backtrack - 1},
        )
    return wanted


def check_sampler(config: EngineConfig, sampler: Sampler, owner: str) -> None:
    """Raise NotSupported for a sampler that cannot draw the drafts that the settings ask for."""
    if config.draft_tokens and not hasattr(sampler, "draft"):
        raise NotSupported(
            f"draft_tokens is {config.draft_tokens}, but sampler {config.sampler!r} draws no drafts",
            reason=f"the sampler of {owner or 'its plugin'} has no method draft",
            remedy="leave --draft-tokens out, or use --sampler canonical",
            details={"field": "draft_tokens", "sampler": config.sampler},
        )


def reserve(sampler: Sampler, max_num_seqs: int) -> None:
    """Let a sampler that keeps something for each sequence allocate it. Raises CapacityError."""
    allocate = getattr(sampler, "reserve", None)
    if allocate is not None:
        allocate(max_num_seqs)
