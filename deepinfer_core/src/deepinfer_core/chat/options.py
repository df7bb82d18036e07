"""How a conversation is to be answered: tools, thinking, whose turn it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from attrs import evolve, field, fields, frozen

from deepinfer_core.errors import InvalidParameter
from deepinfer_core.parameters.sampling_params import refuse

EFFORTS = ("low", "high", "xhigh", "max")
TOOL_CHOICES = ("auto", "none", "required")


def _tools(value: object) -> tuple[Mapping[str, object], ...]:
    allowed = "a list of tool definitions (mappings with a name, or with type and function)"
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise refuse("tools", value, allowed)
    tools: list[Mapping[str, object]] = []
    for item in value:
        if not isinstance(item, Mapping):
            raise refuse("tools", value, allowed)
        tools.append(item if "function" in item else {"type": "function", "function": dict(item)})
    return tuple(tools)


def _tool_choice(value: object) -> object:
    if isinstance(value, Mapping) or value in TOOL_CHOICES:
        return value
    raise refuse("tool_choice", value, f"{', '.join(TOOL_CHOICES)}, or a mapping that names one function")


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise refuse(name, value, "true or false")
    return value


def _thinking(value: object) -> bool:
    return _flag("thinking", value)


def _continue_last(value: object) -> bool:
    return _flag("continue_last", value)


def _effort(value: object) -> str | None:
    if value is None or (isinstance(value, str) and value in EFFORTS):
        return value
    raise refuse("effort", value, f"none or one of {', '.join(EFFORTS)}")


@frozen(kw_only=True)
class ChatOptions:
    """What goes with the messages of a conversation.

    :param tools: Functions that the model may call: ``{"name": ..., "description": ..., "parameters": JSON schema}``,
        or the same under ``{"type": "function", "function": ...}``.
    :param tool_choice: ``auto``, ``none`` (the tools are not shown), ``required`` (the answer begins inside a call;
        without thinking only), or a mapping that names one function.
    :param thinking: Whether the answer begins with reasoning.
    :param effort: How long to reason: ``low``, ``high`` (what None means), ``xhigh`` or ``max``.
    :param continue_last: Go on with the last message, which is an assistant's; False opens a new turn.

    Raises InvalidParameter for a value outside its range, and for ``effort`` without thinking.
    """

    tools: tuple[Mapping[str, object], ...] = field(default=(), converter=_tools)
    tool_choice: object = field(default="auto", converter=_tool_choice)
    thinking: bool = field(default=True, converter=_thinking)
    effort: str | None = field(default=None, converter=_effort)
    continue_last: bool = field(default=False, converter=_continue_last)

    def __attrs_post_init__(self) -> None:
        if self.effort is not None and not self.thinking:
            raise InvalidParameter(
                f"effort is {self.effort} and thinking is off",
                remedy="leave effort out, or turn thinking on",
                details={"field": "effort"},
            )
        if self.tool_choice not in ("auto", "none") and not self.tools:
            raise InvalidParameter(
                f"tool_choice is {self.tool_choice!r} and there are no tools",
                remedy="give tools, or leave tool_choice out",
                details={"field": "tool_choice"},
            )

    def updated(self, changes: Mapping[str, object]) -> Self:
        """A copy with ``changes``, whose names are fields."""
        return evolve(self, **changes) if changes else self


NAMES = tuple(item.name for item in fields(ChatOptions))
