"""Options of a chat on the command line: thinking, effort and, where there is a batch, tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from deepinfer_core.bounded_file import read_bounded_text
from deepinfer_core.errors import InvalidInputFile

F = TypeVar("F", bound=Callable[..., Any])
EFFORTS = click.Choice(["low", "high", "xhigh", "max"])
_KEY = "deepinfer.chat"


def thinking_options(function: F) -> F:
    """Decorator: ``--thinking`` and ``--effort``; :func:`given_chat` has what was given."""
    for option in (
        click.option(
            "--effort", type=EFFORTS, expose_value=False, callback=_keep, help="How long to reason; default high."
        ),
        click.option(
            "--thinking/--no-thinking",
            default=None,
            expose_value=False,
            callback=_keep,
            help="Reason before the answer, which is the default.",
        ),
    ):
        function = option(function)
    return function


def tool_options(function: F) -> F:
    """Decorator: ``--tools`` and ``--tool-choice``."""
    for option in (
        click.option(
            "--tool-choice",
            type=click.Choice(["auto", "none", "required"]),
            expose_value=False,
            callback=_keep,
            help="Whether a tool may, cannot or must be called; default auto.",
        ),
        click.option(
            "--tools",
            metavar="FILE",
            expose_value=False,
            callback=_keep,
            help="Tools that the model may call, as a JSON list of definitions.",
        ),
    ):
        function = option(function)
    return function


def given_chat(context: click.Context) -> dict[str, Any]:
    """The fields of ``ChatOptions`` that were given, the file of tools read."""
    given = dict(context.meta.get(_KEY, {}))
    if "tools" in given:
        given["tools"] = read_tools(given["tools"])
    return given


def given_names(context: click.Context) -> list[str]:
    """The options that were given, as typed."""
    return ["--" + name.replace("_", "-") for name in context.meta.get(_KEY, {})]


def read_tools(path: str) -> list[Any]:
    """The tool definitions in a JSON file. Raises InvalidInputFile."""
    remedy = 'write a list such as [{"name": "run", "parameters": {"type": "object"}}]'
    try:
        tools = json.loads(read_bounded_text(path))
    except OSError as err:
        raise InvalidInputFile(
            f"cannot read the tools file {path}", reason=err.strerror or str(err), remedy="check --tools"
        ) from err
    except (ValueError, RecursionError) as err:
        raise InvalidInputFile(f"the tools file {path} is not JSON", reason=str(err), remedy=remedy) from err
    if not isinstance(tools, list) or not tools:
        raise InvalidInputFile(f"the tools file {path} holds no list of tools", remedy=remedy)
    return tools


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        context.meta.setdefault(_KEY, {})[parameter.name] = value
