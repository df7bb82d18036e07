"""Options of ``deepinfer generate`` that become ``SamplingParams``, and those that this release refuses by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from deepinfer_core.cli.state import text_of
from deepinfer_core.errors import NotSupported

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
    ("-n --num-samples", "n", {"type": int, "help": "Answers per prompt, which is computed once; default 1."}),
    ("--ignore-eos", "ignore_eos", {"is_flag": True, "help": "Go on at the model's end tokens."}),
)

# Options that other releases or engines have -> what to do instead.
ABSENT: dict[str, tuple[str, str]] = {
    "--json-schema": ("structured output", "validate the text after generation"),
    "--regex": ("structured output", "validate the text after generation"),
    "--grammar": ("structured output", "validate the text after generation"),
    "--logprobs": ("log-probabilities", "leave it out"),
    "--repetition-penalty": ("penalties", "leave it out"),
    "--presence-penalty": ("penalties", "leave it out"),
    "--frequency-penalty": ("penalties", "leave it out"),
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
    context.meta.setdefault(_KEY, {})[parameter.name] = value


def _refusal(feature: str, remedy: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            raise NotSupported(
                f"{parameter.opts[0]}: this release does not have {feature}",
                remedy=remedy,
                details={"option": parameter.opts[0]},
            )

    return refuse
