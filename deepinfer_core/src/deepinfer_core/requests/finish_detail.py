"""Why exactly an answer ended, beside its finish reason (``spec/sampling.md`` 1.2). Nothing else is ever given."""

from __future__ import annotations

from enum import StrEnum


class FinishDetail(StrEnum):
    """``NONE`` where the reason says it all; ``error`` has the free text."""

    NONE = ""
    EOS = "eos"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    MAX_TOKENS = "max_tokens"
    MODEL_LENGTH = "model_length"
    NAN_LOGITS = "nan_logits"
    SO_INVALID_GRAMMAR = "so_invalid_grammar"
    SO_COMPILE_TIMEOUT = "so_compile_timeout"
    SO_NO_CAPACITY = "so_no_capacity"
    SO_RUNTIME_ERROR = "so_runtime_error"
    SO_DEAD_END = "so_dead_end"
