"""Options of ``deepinfer generate`` that become ``SamplingParams``, and those that this release refuses by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from deepinfer_core.cli.state import text_of
from deepinfer_core.errors import InvalidInputFile, NotSupported
from deepinfer_core.parameters.logit_params import BIAS_ALLOWED, FORCED_ALLOWED
from deepinfer_core.parameters.values import refuse

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_MAX_TOKENS = 128
"""New tokens per prompt on the command line (16 in Python)."""

# (option, or a short and a long one; field; click arguments)
SAMPLING: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--max-tokens", "max_tokens", {"type": int, "help": "New tokens per prompt; also ends at the context limit."}),
    ("--min-tokens", "min_tokens", {"type": int, "help": "Ignore end tokens and stop strings before this many."}),
    ("--temperature", "temperature", {"type": float, "help": "0 is greedy; default 1."}),
    ("--top-p", "top_p", {"type": float, "help": "Nucleus mass, above 0 to 1."}),
    ("--top-k", "top_k", {"type": int, "help": "Most likely tokens to choose from; -1 is all."}),
    ("--min-p", "min_p", {"type": float, "help": "Drop tokens below this share of the best one's probability."}),
    ("--stop", "stop", {"multiple": True, "help": "String that ends the answer; may be given several times."}),
    ("--stop-token-id", "stop_token_ids", {"type": int, "multiple": True, "help": "Token that ends the answer."}),
    ("--include-stop", "include_stop", {"is_flag": True, "help": "Keep the stop in the text."}),
    (
        "--repetition-penalty",
        "repetition_penalty",
        {"type": float, "help": "Above 1: tokens of prompt and answer become less likely; 1 is off."},
    ),
    (
        "--presence-penalty",
        "presence_penalty",
        {"type": float, "help": "Taken from the logits of tokens of the answer, -2 to 2."},
    ),
    (
        "--frequency-penalty",
        "frequency_penalty",
        {"type": float, "help": "The same, for each time that the answer has the token."},
    ),
    (
        "--logit-bias",
        "logit_bias",
        {"metavar": "ID=VALUE", "multiple": True, "help": "Added to the logit of a token, -100 to 100; repeatable."},
    ),
    ("--logprobs", "logprobs", {"is_flag": True, "help": "Log-probabilities of the tokens, in JSON results."}),
    ("--top-logprobs", "top_logprobs", {"type": int, "help": "Alternatives to list with each token, to 1000."}),
    (
        "--prompt-logprobs",
        "prompt_logprobs",
        {"is_flag": True, "help": "Log-probabilities of the prompt's tokens, in JSON results."},
    ),
    (
        "--logprobs-mode",
        "logprobs_mode",
        {"metavar": "MODE", "help": "processed (what was drawn from, the default) or raw (the model's own)."},
    ),
    (
        "--forced-token-ids",
        "forced_token_ids",
        {"metavar": "IDS", "help": "Tokens of the answer, comma separated; -1 where the token is free."},
    ),
    ("-n --num-samples", "n", {"type": int, "help": "Answers per prompt, which is computed once; default 1."}),
    ("--ignore-eos", "ignore_eos", {"is_flag": True, "help": "Go on at the model's end tokens."}),
    ("--json-schema", "json_schema", {"metavar": "FILE", "help": "The answer is JSON of the schema in FILE."}),
    ("--json-object", "json_object", {"is_flag": True, "help": "The answer is a JSON object."}),
    ("--regex", "regex", {"metavar": "REGEX", "help": "The whole answer matches REGEX."}),
    ("--grammar", "grammar", {"metavar": "FILE", "help": "The answer is a sentence of the EBNF grammar in FILE."}),
)
FROM_FILE = {"json_schema": "--json-schema", "grammar": "--grammar"}
"""Fields whose option names a file with the value."""

# Options that other releases or engines have -> what to do instead.
ABSENT: dict[str, tuple[str, str]] = {
    "--image": ("image input", "give text prompts"),
}


def sampling_options(function: F) -> F:
    """Decorator: adds the options; the command gets the given ones as keyword ``sampling``, a dict of fields."""
    for option, (feature, remedy) in reversed(ABSENT.items()):
        function = click.option(
            option, metavar="VALUE", hidden=True, expose_value=False, callback=_refusal(feature, remedy)
        )(function)
    for option, name, arguments in reversed(SAMPLING):
        function = click.option(*option.split(), name, expose_value=False, callback=_keep, default=None, **arguments)(
            function
        )
    return function


def given_sampling(context: click.Context) -> dict[str, object]:
    """The sampling fields that were given on the command line."""
    return dict(context.meta.get(_KEY, {}))


_KEY = "deepinfer.sampling"


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is None or value is False or value == ():
        return
    if parameter.name == "stop":
        value = tuple(map(text_of, value))
    elif parameter.name == "logit_bias":
        value = tuple(map(_bias_entry, value))
    elif parameter.name == "regex":
        value = text_of(value)
    elif parameter.name in FROM_FILE:
        value = _text_in(value, FROM_FILE[parameter.name])
    elif parameter.name == "forced_token_ids":
        value = tuple(_number("forced_token_ids", part, FORCED_ALLOWED) for part in value.split(","))
    context.meta.setdefault(_KEY, {})[parameter.name] = value


def _bias_entry(text: str) -> tuple[str, float]:
    token, sign, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        sign = ""
    if not sign:
        raise refuse("logit_bias", text, f"ID=VALUE: {BIAS_ALLOWED}")
    return token.strip(), number


def _number(name: str, text: str, allowed: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise refuse(name, text, allowed) from None


def _text_in(path: str, option: str) -> str:
    """The text of a file, one byte more than is allowed at most. Raises InvalidInputFile."""
    from deepinfer_core.structured.sizes import MAX_BYTES

    try:
        with Path(path).open("rb") as stream:
            return stream.read(MAX_BYTES + 1).removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except OSError as err:
        reason = err.strerror or str(err)
    except UnicodeDecodeError as err:
        if err.end > MAX_BYTES:  # cut inside a character: too long, which is said by its size
            return "x" * (MAX_BYTES + 1)
        reason = f"it is not UTF-8 (byte {err.start})"
    raise InvalidInputFile(
        f"cannot read the file of {option}, {path}", reason=reason, remedy=f"check {option}", details={"path": path}
    )


def _refusal(feature: str, remedy: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            raise NotSupported(
                f"{parameter.opts[0]}: this release does not have {feature}",
                remedy=remedy,
                details={"option": parameter.opts[0]},
            )

    return refuse
