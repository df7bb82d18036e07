"""What a caller may ask of sampling, checked before anything runs (``spec/sampling.md`` 1.1).

Every field has a range; a value outside raises ``InvalidParameter`` that names field, value and range. Fields that this
release does not have stay in the signature, so that asking for one is refused by name and never silently ignored.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Self

from attrs import evolve, field, fields, frozen

from deepinfer_core.errors import InvalidParameter
from deepinfer_core.parameters import logit_params, named_parts
from deepinfer_core.parameters.logit_params import LogprobsMode
from deepinfer_core.parameters.named_parts import NamedPart
from deepinfer_core.parameters.values import INT32_MAX, as_float, as_int, as_switch, refuse, single
from deepinfer_core.settings import nearest
from deepinfer_core.structured import forms
from deepinfer_core.structured.forms import StructuredOutput
from deepinfer_core.types import REPLAY_MODES, ReplayModeName

__all__ = ["GREEDY_BELOW", "INT32_MAX", "MAX_SAMPLES", "NAMES", "SEED_MASK", "SamplingParams", "refuse"]

SEED_MASK = 2**64 - 1
MAX_SAMPLES = 128
"""Answers to one prompt at most."""
GREEDY_BELOW = 1e-5
"""Temperatures below this mean the greedy token."""


def _temperature(value: object) -> float:
    allowed = "a finite number >= 0 (0 means greedy), in 32 bits"
    number = as_float("temperature", value, allowed)
    if number < 0:
        raise refuse("temperature", value, allowed)
    return number


def _top_p(value: object) -> float:
    allowed = "a number > 0 and <= 1, in 32 bits"
    number = as_float("top_p", value, allowed)
    if not (number <= 1 and single(number) > 0):
        raise refuse("top_p", value, allowed)
    return number


def _top_k(value: object) -> int:
    allowed = f"-1 (off) or an integer from 1 to {INT32_MAX}"
    number = as_int("top_k", value, -1, INT32_MAX, allowed)
    if number == 0:
        raise refuse("top_k", value, allowed)
    return number


def _min_p(value: object) -> float:
    allowed = "a number >= 0 and < 1, in 32 bits"
    number = as_float("min_p", value, allowed)
    if not (number >= 0 and single(number) < 1):
        raise refuse("min_p", value, allowed)
    return number


def _max_tokens(value: object) -> int:
    return as_int("max_tokens", value, 1, INT32_MAX, f"an integer from 1 to {INT32_MAX}")


def _min_tokens(value: object) -> int:
    return as_int("min_tokens", value, 0, INT32_MAX, "an integer >= 0 and <= max_tokens")


def _ignore_eos(value: object) -> bool:
    return as_switch("ignore_eos", value)


def _include_stop(value: object) -> bool:
    return as_switch("include_stop", value)


def _stop(value: object) -> tuple[str, ...]:
    allowed = "a non-empty string or a list of non-empty strings"
    items = (value,) if isinstance(value, str) else value
    if items is None:
        return ()
    if not isinstance(items, Sequence) or isinstance(items, (bytes, bytearray)):
        raise refuse("stop", value, allowed)
    for item in items:
        if not isinstance(item, str) or not item:
            raise refuse("stop", value, allowed)
    return tuple(dict.fromkeys(items))


def _stop_token_ids(value: object) -> tuple[int, ...]:
    allowed = "a list of token ids (integers >= 0, below the vocabulary size)"
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise refuse("stop_token_ids", value, allowed)
    return tuple(dict.fromkeys(as_int("stop_token_ids", item, 0, INT32_MAX, allowed) for item in value))


def _seed(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        try:
            return operator.index(value) & SEED_MASK
        except TypeError:  # an array of several numbers
            pass
    raise refuse("seed", value, "none or an integer (taken modulo 2**64)")


def _replay_mode(value: object) -> ReplayModeName | None:
    if value is None or value in REPLAY_MODES:
        return value
    raise refuse("replay_mode", value, "none or one of " + ", ".join(REPLAY_MODES))


def _n(value: object) -> int:
    return as_int("n", value, 1, MAX_SAMPLES, f"an integer from 1 to {MAX_SAMPLES}")


@frozen(kw_only=True)
class SamplingParams:
    """How one request is sampled and when it ends.

    :param temperature: ``>= 0``; below 1e-5 the token with the largest logit is taken (lowest id on ties).
    :param top_p: Nucleus mass, in ``(0, 1]``.
    :param top_k: ``-1`` for no limit, or at least 1; the vocabulary size or more means no limit.
    :param min_p: Drop tokens below this share of the best token's probability, in ``[0, 1)``.
    :param max_tokens: New tokens at most. The context limit of the engine holds as well.
    :param min_tokens: End tokens and stop strings count only after this many tokens.
    :param ignore_eos: Go on at the model's end tokens. ``stop_token_ids`` still end the answer.
    :param stop: Strings that end the answer, matched on the decoded text, also across tokens.
    :param stop_token_ids: Further tokens that end the answer.
    :param include_stop: Keep the stop string, or the text of the stop token, in the text.
    :param seed: Fixes the draws of this request; without one the engine chooses, and says which.
    :param n: Answers to the same prompt, which is computed once. Each has its own seed: those of the further ones are
        made from the first.
    :param repetition_penalty: Divides the logits of tokens that prompt or answer has (multiplies those below 0);
        ``> 0``, 1 is off.
    :param presence_penalty: Taken from the logits of tokens that the answer has, in ``[-2, 2]``.
    :param frequency_penalty: The same for each time that the answer has the token, in ``[-2, 2]``.
    :param logit_bias: Token id to number in ``[-100, 100]``, added to its logit; at most 1024 of them.
    :param logprobs: Whether completions have the log-probability of each token; None: if alternatives are wanted.
    :param top_logprobs: Most likely tokens to list beside each token, 0 to 1000.
    :param prompt_logprobs: Whether the result has the log-probability of each prompt token, under the model's own
        distribution. The whole prompt is computed for it, without the prefix cache.
    :param logprobs_mode: ``processed``: of the distribution that the token was drawn from, after penalties,
        temperature and filters; ``raw``: of the model's own.
    :param forced_token_ids: Teacher forcing: the i-th new token is the i-th entry, unless that is -1. Log-probabilities
        are those of the forced tokens.
    :param json_schema: The answer is JSON of this schema, an object or its JSON text.
    :param regex: The whole answer matches this regular expression.
    :param grammar: The answer is a sentence of this grammar, in EBNF.
    :param json_object: The answer is a JSON object.
    :param so_args: The same with everything that there is: ``schema_type`` (``json``, ``regex``, ``ebnf``,
        ``structural_tag``, ``json_object``), ``schema``, ``trigger_token_ids`` behind which the grammar starts, and
        ``bound_token_id`` behind which the trigger is forced.
    :param response_format: The same as chat interfaces say it: ``{"type": "json_schema", "json_schema": {...}}``;
        ``text`` is no constraint.

    :param sampler: A row sampler plugin that chooses the tokens in place of ``top_p``, ``top_k`` and ``min_p``: its
        name, or ``{"name": ..., "params": {...}}``.
    :param logits_filters: Plugins that change the logits before a token is chosen, in this order; each as ``sampler``.
    :param replay_mode: ``off``, ``mask`` or ``compact``: which rows of the prompt the decoder half runs. None: the
        engine's ``replay_mode``, and none behind it in that order.

    Of the six for structured output at most one is given. Raises ``InvalidParameter`` for a value outside its range.
    """

    temperature: float = field(default=1.0, converter=_temperature)
    top_p: float = field(default=1.0, converter=_top_p)
    top_k: int = field(default=-1, converter=_top_k)
    min_p: float = field(default=0.0, converter=_min_p)
    max_tokens: int = field(default=16, converter=_max_tokens)
    min_tokens: int = field(default=0, converter=_min_tokens)
    ignore_eos: bool = field(default=False, converter=_ignore_eos)
    stop: tuple[str, ...] = field(default=(), converter=_stop)
    stop_token_ids: tuple[int, ...] = field(default=(), converter=_stop_token_ids)
    include_stop: bool = field(default=False, converter=_include_stop)
    seed: int | None = field(default=None, converter=_seed)
    n: int = field(default=1, converter=_n)

    json_schema: str | None = field(default=None, converter=forms.read_json_schema)
    regex: str | None = field(default=None, converter=forms.read_regex)
    grammar: str | None = field(default=None, converter=forms.read_grammar)
    json_object: bool = field(default=False, converter=forms.read_json_object)
    so_args: StructuredOutput | None = field(default=None, converter=forms.read_so_args)
    response_format: StructuredOutput | None = field(default=None, converter=forms.read_response_format)

    repetition_penalty: float = field(default=1.0, converter=logit_params.repetition_penalty)
    presence_penalty: float = field(default=0.0, converter=logit_params.presence_penalty)
    frequency_penalty: float = field(default=0.0, converter=logit_params.frequency_penalty)
    logit_bias: tuple[tuple[int, float], ...] = field(default=(), converter=logit_params.logit_bias)
    logprobs: bool | None = field(default=None, converter=logit_params.logprobs)
    top_logprobs: int = field(default=0, converter=logit_params.top_logprobs)
    prompt_logprobs: bool = field(default=False, converter=logit_params.prompt_logprobs)
    logprobs_mode: LogprobsMode = field(default="processed", converter=logit_params.logprobs_mode)
    forced_token_ids: tuple[int, ...] = field(default=(), converter=logit_params.forced_token_ids)

    sampler: NamedPart | None = field(default=None, converter=named_parts.sampler)
    logits_filters: tuple[NamedPart, ...] = field(default=(), converter=named_parts.logits_filters)
    replay_mode: ReplayModeName | None = field(default=None, converter=_replay_mode)

    def __attrs_post_init__(self) -> None:
        if self.sampler is not None:
            self._check_row_sampler(self.sampler.name)
        if self.logprobs is False and self.top_logprobs:
            raise refuse("top_logprobs", self.top_logprobs, "0 where logprobs is false")
        if self.min_tokens > self.max_tokens:
            raise refuse("min_tokens", self.min_tokens, f"an integer >= 0 and <= max_tokens ({self.max_tokens})")
        if self.structured is not None and self.ignore_eos:
            raise refuse("ignore_eos", True, "false with structured output, whose end is an end token")

    def _check_row_sampler(self, name: str) -> None:
        """Filters that the row sampler takes the place of would be ignored without a word."""
        if self.is_greedy:
            raise refuse("temperature", self.temperature, f"at least {GREEDY_BELOW} with sampler {name!r}")
        for field_name, off in (("top_p", 1.0), ("top_k", -1), ("min_p", 0.0)):
            value = getattr(self, field_name)
            if value != off:
                raise refuse(field_name, value, f"{off} with sampler {name!r}, which takes its place")

    @property
    def structured(self) -> StructuredOutput | None:
        """The grammar that the answer keeps to; None: it is free."""

        def short(kind: str, schema: str | None) -> StructuredOutput | None:
            return None if schema is None else StructuredOutput(kind, schema)

        return forms.chosen(
            {
                "so_args": self.so_args,
                "json_schema": short("json", self.json_schema),
                "regex": short("regex", self.regex),
                "grammar": short("ebnf", self.grammar),
                "json_object": StructuredOutput("json_object", "") if self.json_object else None,
                "response_format": self.response_format,
            }
        )

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def wants_logprobs(self) -> bool:
        """Whether completions have log-probabilities."""
        return bool(self.logprobs) or self.top_logprobs > 0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ``InvalidParameter`` for a token id that the model does not have."""
        allowed = f"token ids from 0 to {vocab_size - 1}"
        biased = tuple(token for token, _ in self.logit_bias)
        given = (("stop_token_ids", self.stop_token_ids), ("logit_bias", biased))
        for name, tokens in (*given, ("forced_token_ids", self.forced_token_ids)):
            for token in tokens:
                if token >= vocab_size:
                    raise refuse(name, token, allowed)
        if self.structured is not None:
            self.structured.check_vocabulary(vocab_size)

    def check_chosen(self, vocab_size: int) -> None:
        """Raise ``InvalidParameter`` for a token that the answer is to have and that is never chosen.

        :param vocab_size: Ids that may be sampled: further rows of the output head have no text.
        """
        for token in self.forced_token_ids:
            if token >= vocab_size:
                raise refuse("forced_token_ids", token, f"token ids from 0 to {vocab_size - 1}, or -1")
        if self.structured is not None:
            self.structured.check_vocabulary(vocab_size)

    def updated(self, changes: Mapping[str, object]) -> Self:
        """A copy with ``changes``. Raises ``InvalidParameter`` for a name that no field has."""
        if not changes:
            return self
        for name in changes:
            if name not in NAMES:
                close = nearest(name, NAMES)
                hint = f"did you mean {close!r}?" if close else "known fields: " + ", ".join(NAMES)
                raise InvalidParameter(
                    f"unknown sampling parameter {name!r}", remedy=hint, details={"field": name, "allowed": list(NAMES)}
                )
        if any(name in forms.NAMES for name in changes):  # one grammar takes the place of another
            changes = {**dict.fromkeys(forms.NAMES, None), "json_object": False, **changes}
        return evolve(self, **changes)


NAMES = tuple(item.name for item in fields(SamplingParams))
