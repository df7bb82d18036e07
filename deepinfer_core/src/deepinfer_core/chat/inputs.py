"""Conversations of a caller, or lines of a file, as prompts: each encoded when its turn comes.

A conversation that cannot be answered never stops the others: it comes back as the result at its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attrs import evolve, frozen

from deepinfer_core.chat.conversation import Conversation
from deepinfer_core.chat.options import NAMES, ChatOptions
from deepinfer_core.chat.prompt import ChatPrompt
from deepinfer_core.errors import DeepInferError, InvalidMessages, InvalidParameter
from deepinfer_core.parameters.sampling_params import INT32_MAX, SamplingParams
from deepinfer_core.requests.prompts import PromptInput, objects_of_lines, request_id_of

Encode = Callable[[Conversation, SamplingParams], tuple[ChatPrompt, SamplingParams]]
"""Renders a conversation and settles its sampling parameters, which may depend on how it is rendered."""

EXAMPLE = '{"messages": [{"role": "user", "content": "Hello"}]}'


@frozen
class _Item:
    """One conversation as the caller gave it."""

    value: object
    params: SamplingParams | None
    line: int | None = None
    error: DeepInferError | None = None


def conversations_of(messages: object, params: object, options: ChatOptions, encode: Encode) -> Iterator[PromptInput]:
    """``messages``: one conversation (a list of messages, or a mapping with ``messages``) or an iterable of them.

    Raises InvalidParameter, before anything runs, where ``params`` do not fit.
    """
    items = _conversations(messages)
    if params is None or isinstance(params, SamplingParams):
        shared = params
        return (_input(_Item(item, shared), options, encode) for item in items)
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise InvalidParameter(
            f"sampling_params is {type(params).__name__}",
            remedy="pass a SamplingParams or a list with one per conversation",
        )
    listed = list(items)
    if len(listed) != len(params):
        raise InvalidParameter(
            f"{len(params)} sampling_params for {len(listed)} conversations",
            remedy="pass one SamplingParams or one per conversation",
        )
    return (_input(_Item(item, p), options, encode) for item, p in zip(listed, params, strict=True))


def _conversations(messages: object) -> Iterable[object]:
    if isinstance(messages, Mapping):
        return (messages,)
    if isinstance(messages, Sequence) and not isinstance(messages, (str, bytes)):
        one = not messages or (isinstance(messages[0], Mapping) and "messages" not in messages[0])
        return (messages,) if one else messages
    if isinstance(messages, Iterable) and not isinstance(messages, (str, bytes)):
        return messages
    raise InvalidMessages(
        f"messages is {type(messages).__name__}", remedy='pass a list such as [{"role": "user", "content": "Hello"}]'
    )


def read_conversations(
    source: Iterable[bytes], params: SamplingParams, options: ChatOptions, encode: Encode
) -> Iterator[PromptInput]:
    """One JSON object per line: ``messages``, maybe ``id``, chat options and sampling fields."""
    for line, value in objects_of_lines(source, EXAMPLE):
        if isinstance(value, DeepInferError):
            yield _failed(_Item(None, params, line, value))
        else:
            yield _input(_Item(value, params, line), options, encode)


def _failed(item: _Item, request_id: str | None = None) -> PromptInput:
    return PromptInput(None, item.params or SamplingParams(), request_id, item.line, item.error)


def _input(item: _Item, options: ChatOptions, encode: Encode) -> PromptInput:
    request_id: str | None = None
    try:
        messages, sampling = item.value, {}
        if isinstance(item.value, Mapping):
            request_id = request_id_of(item.value)
            if "messages" not in item.value:
                raise InvalidMessages("messages is missing", remedy=f"write {EXAMPLE}")
            messages = item.value["messages"]
            options = options.updated({name: item.value[name] for name in NAMES if name in item.value})
            sampling = {k: v for k, v in item.value.items() if k not in (*NAMES, "id", "messages")}
        base = SamplingParams(max_tokens=INT32_MAX) if item.params is None else item.params
        chat, params = encode(Conversation(messages, options), base.updated(sampling))  # type: ignore[arg-type]
        if item.params is None and "max_tokens" not in sampling:
            params = evolve(params, max_tokens=chat.default_max_tokens)
        return PromptInput(chat.token_ids, params, request_id, item.line, chat=chat, stops_between=chat.stops_between)
    except DeepInferError as err:
        return _failed(evolve(item, error=err), request_id)
