"""``DEEPINFER_TRACE_HOOKS=1``: one line on standard error for each hook call, whose it is, and what came back.

A child process has its standard error kept from the terminal, because what a driver prints does not belong there. Its
lines are marked, and the parent passes them on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pluggy

MARK = "\x1fdeepinfer "
"""Begins a line of a child process that is meant for the parent's standard error."""

_is_child = False


def in_child() -> None:
    """Mark the lines of this process from now on: it is a child."""
    global _is_child
    _is_child = True


def trace_calls(manager: pluggy.PluginManager, title_of: Callable[[str], str]) -> None:
    """Write a line for each call of a hook through ``manager``.

    :param title_of: Gives the words for a plugin, from the name that it is registered under.
    """

    def before(hook_name: str, hook_impls: Sequence[pluggy.HookImpl], kwargs: Mapping[str, Any]) -> None:
        """The line is written when it is known what came back."""

    def after(
        outcome: pluggy.Result[Any],
        hook_name: str,
        hook_impls: Sequence[pluggy.HookImpl],
        kwargs: Mapping[str, Any],
    ) -> None:
        if hook_impls:
            owners = ", ".join(title_of(impl.plugin_name) for impl in hook_impls)
            raised = outcome.exception
            what = f"returned {_kind(outcome.get_result())}" if raised is None else f"raised {type(raised).__name__}"
            write(f"hook {hook_name} of {owners} {what}")

    manager.add_hookcall_monitoring(before, after)


def write(line: str) -> None:
    """One line on standard error, by itself or through the parent."""
    sys.stderr.write(f"{MARK if _is_child else ''}{line}\n")
    sys.stderr.flush()


def _kind(result: object) -> str:
    """``Toy``; of a hook that asks several plugins, or each for a list: ``list of ModelMatch``."""
    if not isinstance(result, list | tuple):
        return "nothing" if result is None else type(result).__name__
    inner = list(dict.fromkeys(_kind(item) for item in result))
    return f"{type(result).__name__} of {' and '.join(inner)}" if inner else "nothing"
