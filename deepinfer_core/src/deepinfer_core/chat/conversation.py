"""Messages of a conversation, checked and brought into the form that the library reads.

The library checks that tool results answer calls, schemas of tools and the like; here is what it lets pass: unknown
keys, images, an empty turn of the user, and whose turn it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from deepinfer_core.chat.options import ChatOptions
from deepinfer_core.chat.recipe import MODEL, recipe
from deepinfer_core.errors import InvalidMessages, NotSupported

ROLES = ("system", "user", "assistant", "tool", "latest_reminder")
KEYS: Mapping[str, frozenset[str]] = {
    "system": frozenset({"role", "content", "name"}),
    "user": frozenset({"role", "content", "name"}),
    "assistant": frozenset({"role", "content", "name", "reasoning_content", "tool_calls", "prefix"}),
    "tool": frozenset({"role", "content", "tool_call_id", "name"}),
    "latest_reminder": frozenset({"role", "content", "name"}),
}
NESTING = 64
"""Deepest nesting of lists and mappings in messages and tools; the library's reader ends at 128."""


@frozen
class Conversation:
    """Messages and how to answer them.

    ``messages``: mappings with ``role`` and ``content``, as in ``{"role": "user", "content": "Hello"}``. An assistant's
    may have ``reasoning_content`` and ``tool_calls``, a tool's has ``tool_call_id``.
    """

    messages: Sequence[Mapping[str, Any]]
    options: ChatOptions = field(factory=ChatOptions)

    def request(self, response_format: Mapping[str, object] | None = None) -> Any:
        """The library's ``ConversationRequest``.

        :param response_format: What the prompt says of the form of the answer.

        Raises InvalidMessages for messages or tools that are no conversation, NotSupported for images.
        """
        library = recipe()
        options = self.options
        messages = checked_messages(self.messages, continue_last=options.continue_last)
        body: dict[str, object] = {
            "model": MODEL,
            "messages": messages,
            "thinking": {"type": "enabled" if options.thinking else "disabled"},
        }
        if options.effort is not None:
            body["reasoning_effort"] = options.effort
        if options.tools:
            body["tools"] = options.tools
            body["tool_choice"] = options.tool_choice
        if response_format is not None:
            body["response_format"] = response_format
        text = _json(body)
        try:
            request = library.ChatCompletionRequest(text).convert(library.ConversionOptions())
        except (library.ConversionError, ValueError) as err:
            raise InvalidMessages(
                "the messages are no conversation",
                reason=str(err),
                remedy="see docs/how-to/chat.md for the form of messages and tools",
            ) from err
        if not request.conversation.messages:  # the library leaves out an empty message of the system
            raise InvalidMessages("the messages say nothing", remedy="give at least one message with content")
        return request


def checked_messages(messages: object, *, continue_last: bool) -> list[dict[str, Any]]:
    """Copies of ``messages``, the last one marked as a beginning if it is to be continued."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise InvalidMessages(
            f"messages is {type(messages).__name__}",
            remedy='pass a list such as [{"role": "user", "content": "Hello"}]',
        )
    if not messages:
        raise InvalidMessages("messages is empty", remedy="give at least one message")
    checked = [_checked(message, index) for index, message in enumerate(messages)]
    marked = [i for i, message in enumerate(checked) if message.pop("prefix", None)]
    last = len(checked) - 1
    if marked and marked != [last]:
        raise _wrong(marked[0], "has prefix and is not the last message", "continue the last message, or none")
    if continue_last or marked:
        final = checked[last]
        if final["role"] != "assistant":
            raise _wrong(
                last, f"is to be continued and is a {final['role']} message", "continue an assistant's message only"
            )
        if "tool_calls" in final:
            raise _wrong(last, "is to be continued and has tool calls", "add the results of the calls instead")
        final["prefix"] = True
        if final.get("content") is None:
            final["content"] = ""  # goes on with its reasoning
    return checked


def _checked(message: object, index: int) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _wrong(index, f"is {type(message).__name__}", "make it a mapping with role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _wrong(index, f"has the role {role!r}", f"use one of {', '.join(ROLES)}")
    given = {key: value for key, value in message.items() if value is not None}  # other programs write null for absent
    for key in given:
        if key not in KEYS[role]:
            allowed = ", ".join(sorted(KEYS[role]))
            raise _wrong(index, f"has the key {key!r}", f"a {role} message may have {allowed}")
    if not isinstance(given.get("prefix", False), bool):
        raise _wrong(index, f"has prefix {given['prefix']!r}", "make it true or false")
    _check_content(given.get("content"), role, index)
    if role == "assistant":
        if not given.get("tool_calls", True):
            del given["tool_calls"]  # an empty list says that there are none
        if "tool_calls" in given:
            given["tool_calls"] = _calls(given["tool_calls"], index)
            given.setdefault("content", "")
    given.pop("name", None)  # the V4.1 form has no place for it
    return given


def _check_content(content: object, role: str, index: int) -> None:
    if isinstance(content, (list, tuple)):
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in ("image", "image_url", "input_image"):
                raise NotSupported(
                    f"messages[{index}]: this release has no image input",
                    remedy="pass text only",
                    details={"message": index},
                )
            if not isinstance(part, Mapping) or kind != "text" or not isinstance(part.get("text"), str):
                raise _wrong(index, "has a content part that is no text", 'write {"type": "text", "text": "..."}')
        empty = not any(part["text"] for part in content)
    elif content is None and role == "assistant":
        return  # it may have only calls, or only reasoning to go on with
    elif isinstance(content, str):
        empty = not content
    else:
        found = "no content" if content is None else f"content of type {type(content).__name__}"
        raise _wrong(index, f"has {found}", "make it a string or a list of text parts")
    if empty and role == "user":
        raise _wrong(index, "is empty", "say something, or leave the message out")


def _calls(calls: object, index: int) -> list[object]:
    """Tool calls whose arguments are text: a mapping of arguments is written as JSON."""
    if not isinstance(calls, (list, tuple)):
        raise _wrong(index, f"has tool_calls of type {type(calls).__name__}", "make it a list")
    listed: list[object] = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("arguments"), Mapping):
            call = {**call, "function": {**function, "arguments": _json(function["arguments"])}}
        if isinstance(call, Mapping):
            call = {"type": "function", **call}
        listed.append(call)
    return listed


def _json(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as err:
        raise InvalidMessages(
            "messages or tools are no JSON", reason=str(err), remedy="use strings, numbers, lists and mappings"
        ) from err
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidMessages(
            "messages or tools are not UTF-8: they have half of a surrogate pair", remedy="pass UTF-8 text"
        ) from None
    if _depth(value) > NESTING:
        raise InvalidMessages(f"messages or tools are nested deeper than {NESTING}", remedy="make them flatter")
    return text


def _depth(value: object) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        inner: list[object] = []
        for item in level:
            if isinstance(item, Mapping):
                inner += item.values()
            elif isinstance(item, (list, tuple)):
                inner += item
        level = inner
    return depth


def _wrong(index: int, what: str, remedy: str) -> InvalidMessages:
    return InvalidMessages(f"messages[{index}] {what}", remedy=remedy, details={"message": index})
