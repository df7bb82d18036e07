"""Parameters that change logits or ask for log-probabilities: their converters (``spec/sampling.md`` 1.1)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from deepinfer_core.parameters.values import INT32_MAX, as_float, as_int, as_switch, refuse, single

LogprobsMode = Literal["processed", "raw"]
LOGPROBS_MODES = ("processed", "raw")
MAX_TOP_LOGPROBS = 1000
MAX_BIAS_ENTRIES = 1024
BIAS_RANGE = 100

BIAS_ALLOWED = f"at most {MAX_BIAS_ENTRIES} token ids, each with a number from -{BIAS_RANGE} to {BIAS_RANGE}"
FORCED_ALLOWED = "a list of token ids, -1 where the token is free"


def presence_penalty(value: object) -> float:
    return _penalty("presence_penalty", value)


def frequency_penalty(value: object) -> float:
    return _penalty("frequency_penalty", value)


def _penalty(name: str, value: object) -> float:
    allowed = "a number from -2 to 2"
    number = as_float(name, value, allowed)
    if not -2 <= number <= 2:
        raise refuse(name, value, allowed)
    return number


def repetition_penalty(value: object) -> float:
    allowed = "a finite number > 0 (1 is off), in 32 bits"
    number = as_float("repetition_penalty", value, allowed)
    if single(number) <= 0:
        raise refuse("repetition_penalty", value, allowed)
    return number


def logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    """(token, value) pairs in the order of the ids. JSON has no keys but strings, so ``"7"`` is token 7 as well."""
    if value is None:
        return ()
    entries: Iterable[object]
    if isinstance(value, Mapping):
        entries = value.items()
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        entries = value  # pairs, as this converter gives them
    else:
        raise refuse("logit_bias", value, BIAS_ALLOWED)
    bias: dict[int, float] = {}
    for entry in entries:
        if not isinstance(entry, (tuple, list)) or len(entry) != 2:
            raise refuse("logit_bias", value, BIAS_ALLOWED)
        token, amount = _token(entry[0]), as_float("logit_bias", entry[1], BIAS_ALLOWED)
        if token in bias:
            raise refuse("logit_bias", value, f"{BIAS_ALLOWED}; token {token} has two")
        if abs(amount) > BIAS_RANGE:
            raise refuse("logit_bias", amount, BIAS_ALLOWED)
        bias[token] = amount
    if len(bias) > MAX_BIAS_ENTRIES:
        raise refuse("logit_bias", f"{len(bias)} entries", BIAS_ALLOWED)
    return tuple(sorted(bias.items()))


def _token(key: object) -> int:
    if isinstance(key, str):
        if not re.fullmatch(r"\d{1,10}", key, re.ASCII):
            raise refuse("logit_bias", key, BIAS_ALLOWED)
        key = int(key)
    return as_int("logit_bias", key, 0, INT32_MAX, BIAS_ALLOWED)


def forced_token_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise refuse("forced_token_ids", value, FORCED_ALLOWED)
    return tuple(as_int("forced_token_ids", item, -1, INT32_MAX, FORCED_ALLOWED) for item in value)


def logprobs(value: object) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise refuse("logprobs", value, "true or false; top_logprobs says how many alternatives")


def top_logprobs(value: object) -> int:
    return as_int("top_logprobs", value, 0, MAX_TOP_LOGPROBS, f"an integer from 0 to {MAX_TOP_LOGPROBS}")


def prompt_logprobs(value: object) -> bool:
    return as_switch("prompt_logprobs", value)


def logprobs_mode(value: object) -> LogprobsMode:
    if value == "processed":
        return "processed"
    if value == "raw":
        return "raw"
    raise refuse("logprobs_mode", value, "one of " + ", ".join(LOGPROBS_MODES))
