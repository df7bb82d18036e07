"""How long a sequence may be: the setting against the model's own limit."""

from __future__ import annotations

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError
from deepinfer_core.types import SchedulerHints

DEFAULT_MAX_MODEL_LEN = 4096
"""For a model that names no limit of its own."""


def resolve_max_model_len(config: EngineConfig, hints: SchedulerHints) -> int:
    """Positions of a sequence at most. Checked before a model is created, because models allocate tables for it.

    :raises ConfigError: the setting is beyond the model's limit, naming both, or leaves no room for an answer.
    """
    limit = hints.max_model_len
    asked = config.max_model_len
    if asked is None:
        return limit or DEFAULT_MAX_MODEL_LEN
    if limit is not None and asked > limit:
        raise ConfigError(
            f"max_model_len {asked} is beyond the model's {limit}",
            remedy=f"set --max-model-len to {limit} or less",
            details={"field": "max_model_len", "value": asked, "limit": limit},
        )
    if asked < 2:
        raise ConfigError(
            "max_model_len 1 leaves no room for an answer",
            remedy="set --max-model-len to 2 or more",
            details={"field": "max_model_len", "value": asked},
        )
    return asked
