"""What the command line gathered before a command runs, and the options that gather it.

An option that is a setting is made from the setting's declaration, so its help, range and name exist once. It is
accepted before the command and after it; the later one wins.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
from attrs import define, field

from deepinfer_core.config import EngineConfig, settings_by_key
from deepinfer_core.settings import option_name

if TYPE_CHECKING:
    from deepinfer_core.plugins.record import PluginRecord

F = TypeVar("F", bound=Callable[..., Any])


@define
class CommandState:
    """The context object of every command (``click.pass_obj``)."""

    flags: dict[str, object] = field(factory=dict)
    """Setting key -> value as typed."""
    config_file: str | None = None
    json: bool = False
    debug: bool = False
    owner: PluginRecord | None = None
    """The plugin whose command runs; None: one of the core's."""
    _warned: set[str] = field(factory=set, init=False)

    def resolve(self, recorded: Mapping[str, object] | None = None) -> EngineConfig:
        """The settings, from all sources; warnings go to standard error. ``recorded``: those of an earlier run."""
        config = EngineConfig.resolve(self.flags, file=self.config_file, recorded=recorded)
        self.debug = config.debug
        for line in config.warnings:
            if line in self._warned:
                continue
            self._warned.add(line)
            sys.stderr.write(f"deepinfer: {line}\n")
        return config

    def trace(self, error: BaseException) -> None:
        """With ``--debug``, where ``error`` came from, on standard error: its traceback, or the note that a step left
        in its place."""
        if self.debug:
            import traceback

            traceback.print_exception(error)


METAVARS = {
    "integer": "N",
    "size": "SIZE",
    "names": "NAME",
    "ids": "ID,...",
    "numbers": "X,...",
    "table": "KIND:NAME=DIST",
}
"""How help shows the value of a setting, by its kind."""


def text_of(argument: str) -> str:
    """A word of the command line as text: UTF-8, also where the locale's encoding is another one.

    What the locale cannot decode arrives as lone surrogates. Bytes that are not UTF-8 either stay so.
    """
    if not any("\ud800" <= char <= "\udfff" for char in argument):
        return argument
    try:
        return os.fsencode(argument).decode("utf-8")
    except UnicodeError:
        return argument


def _state(context: click.Context) -> CommandState:
    state = context.find_object(CommandState)
    return state if state is not None else context.find_root().ensure_object(CommandState)


def setting_options(*keys: str) -> Callable[[F], F]:
    """Decorator: options for these settings. Their values go to ``CommandState.flags``, not to the function."""

    def decorate(function: F) -> F:
        for key in reversed(keys):
            function = _setting_option(key)(function)
        return function

    return decorate


def _setting_option(key: str) -> Callable[[F], F]:
    declared = settings_by_key()[key]
    name = option_name(key)

    def store(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is None or value == ():
            return
        flags = _state(context).flags
        if isinstance(value, tuple):  # an option given several times adds up, before and after the command
            held = flags.get(key, ())
            value = (*(held if isinstance(held, tuple) else ()), *(p for item in value for p in item.split(",") if p))
        flags[key] = value

    common: dict[str, Any] = {"help": declared.help, "expose_value": False, "callback": store, "default": None}
    if declared.kind == "boolean":
        return click.option(f"{name}/--no-{name[2:]}", **common)
    metavar = "FILE" if key == "plugins.lock" else METAVARS.get(declared.kind, "TEXT")
    if declared.choices:
        metavar = "|".join(declared.choices)
    return click.option(name, metavar=metavar, multiple=declared.kind in ("names", "ids", "table"), **common)


def common_options(function: F) -> F:
    """Decorator: ``--config --json --debug`` and the plugin controls, for the root and every command."""

    def store(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if not value:
            return
        state = _state(context)
        match parameter.name:
            case "config":
                state.config_file = value
            case "json":
                state.json = True
            case _:
                state.debug = True
                state.flags["debug"] = True

    hidden: dict[str, Any] = {"expose_value": False, "callback": store, "is_eager": True}
    for decorate in (
        setting_options("plugins.enable", "plugins.disable", "plugins.prefer", "plugins.lock", "strict_plugins"),
        click.option("--debug", is_flag=True, help="Print tracebacks.", **hidden),
        click.option("--json", is_flag=True, help="Data and errors as JSON.", **hidden),
        click.option("--config", metavar="FILE", help="Settings in TOML.", **hidden),
    ):
        function = decorate(function)
    return function
