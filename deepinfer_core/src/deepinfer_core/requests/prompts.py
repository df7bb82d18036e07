"""What the caller gives: prompts as text, as token ids, or as lines of a file; checked and turned into ids.

A bad prompt never stops the others: it travels on as a :class:`PromptInput` with its error, and comes back as the
result at its place.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

from deepinfer_core.errors import DeepInferError, InvalidInputFile, InvalidParameter, InvalidPrompt, NotSupported
from deepinfer_core.parameters.sampling_params import SamplingParams

if TYPE_CHECKING:
    from deepinfer_core.chat.prompt import ChatPrompt

MAX_LINE_BYTES = 16 << 20
"""Longest line of a prompts file, without its newline."""

Prompt = str | Sequence[int] | Mapping[str, object]

NOT_TEXT = {
    "messages": ("messages among prompts", "use LLM.chat, or deepinfer generate --messages FILE"),
    "image": ("image input", "pass text only"),
    "images": ("image input", "pass text only"),
    "multi_modal_data": ("image input", "pass text only"),
}


class Encoder(Protocol):
    """What this module needs of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...

    def least_tokens(self, text: str) -> int: ...


@frozen
class PromptInput:
    """One prompt before it is encoded. ``line`` counts from 1 where the prompt came from a file."""

    prompt: str | tuple[object, ...] | None
    params: SamplingParams
    request_id: str | None = None
    line: int | None = None
    error: DeepInferError | None = None
    chat: ChatPrompt | None = None
    """Where the prompt is a rendered conversation: what reading its answer needs."""
    stops_between: tuple[int | None, int | None] = (None, None)
    """Tokens of the answer between which stop strings count (``Detokenizer``)."""


def inputs_of(prompts: Prompt | Iterable[Prompt], params: object = None) -> Iterator[PromptInput]:
    """Prompts of the Python interface, in order.

    ``prompts`` is one prompt (a string, a mapping or a list of token ids) or an iterable of prompts; ``params`` is one
    ``SamplingParams`` for all, or a sequence with one for each. Raises InvalidParameter, before anything runs, where
    the parameters do not fit.
    """
    items: Iterable[object]
    if hasattr(prompts, "tolist"):  # an array of token ids, or of rows of them
        prompts = prompts.tolist()
    if isinstance(prompts, (str, bytes, Mapping)) or _is_ids(prompts):
        items = (prompts,)
    elif hasattr(prompts, "__iter__"):
        items = prompts
    else:
        raise InvalidPrompt(
            f"prompts is {type(prompts).__name__}", remedy="pass a string, token ids, or a list of them"
        )
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        shared = params
        return (_api_input(item, shared) for item in items)
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise InvalidParameter(
            f"sampling_params is {type(params).__name__}", remedy="pass a SamplingParams or a list with one per prompt"
        )
    items = list(items)
    if len(items) != len(params):
        raise InvalidParameter(
            f"{len(params)} sampling_params for {len(items)} prompts",
            remedy="pass one SamplingParams or one per prompt",
        )
    return (_api_input(item, p) for item, p in zip(items, params, strict=True))


def _is_ids(value: object) -> bool:
    return isinstance(value, Sequence) and len(value) > 0 and all(_as_int(item) is not None for item in value)


def _as_int(value: object) -> int | None:
    """``value`` as an integer; None for anything else. An array has ``__index__`` too, so only a call can tell."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        return None


def _api_input(item: object, params: SamplingParams) -> PromptInput:
    try:
        if isinstance(item, Mapping):
            return _object_input(item, params, None)
        return PromptInput(_plain_prompt(item), params)
    except DeepInferError as err:
        return PromptInput(None, params, error=err)


def _plain_prompt(item: object) -> str | tuple[object, ...]:
    if isinstance(item, str):
        return item
    if isinstance(item, bytes):
        try:
            return item.decode("utf-8")
        except UnicodeDecodeError as err:
            raise _not_utf8(err.start) from None
    if isinstance(item, Iterable) and not isinstance(item, Mapping):
        return tuple(item)
    raise InvalidPrompt(f"the prompt is {type(item).__name__}", remedy="pass a string or a list of token ids")


def request_id_of(item: Mapping[str, object]) -> str | None:
    """The ``id`` that the caller gave to a prompt or conversation. Raises InvalidPrompt for an odd one."""
    name = item.get("id")
    if name is not None and (isinstance(name, bool) or not isinstance(name, (str, int))):
        raise InvalidPrompt(f"id is {name!r}", remedy="make it a string or an integer")
    return None if name is None else str(name)


def _object_input(item: Mapping[str, object], params: SamplingParams, line: int | None) -> PromptInput:
    """A prompt with its own id and sampling fields: ``{"prompt": ..., "id": ..., "max_tokens": ...}``."""
    request_id = request_id_of(item)
    try:
        for key, (what, remedy) in NOT_TEXT.items():
            if key in item:
                raise NotSupported(f"{key}: this release has no {what}", remedy=remedy, details={"field": key})
        given = [key for key in ("prompt", "prompt_token_ids") if key in item]
        if len(given) != 1:
            found = " and ".join(given) or "neither"
            raise InvalidPrompt(
                f"one of prompt and prompt_token_ids is needed, found {found}", remedy="give one of them"
            )
        value = item[given[0]]
        if (given[0] == "prompt") != isinstance(value, (str, bytes)):
            kind = "a string" if given[0] == "prompt" else "a list of token ids"
            raise InvalidPrompt(f"{given[0]} is {type(value).__name__}", remedy=f"make it {kind}")
        changes = {key: v for key, v in item.items() if key not in ("id", "prompt", "prompt_token_ids")}
        return PromptInput(_plain_prompt(value), params.updated(changes), request_id, line)
    except DeepInferError as err:
        return PromptInput(None, params, request_id, line, err)


def read_text(source: Iterable[bytes], params: SamplingParams) -> Iterator[PromptInput]:
    """One prompt per line. An empty line is an empty prompt, which is an error at its place."""
    for line, raw in _lines(source):
        try:
            yield PromptInput(_within_limit(raw, line).decode("utf-8"), params, line=line)
        except UnicodeDecodeError as err:
            yield PromptInput(None, params, line=line, error=_not_utf8(err.start, line))
        except DeepInferError as err:
            yield PromptInput(None, params, line=line, error=err)


def read_jsonl(source: Iterable[bytes], params: SamplingParams) -> Iterator[PromptInput]:
    """One JSON object per line: ``prompt`` or ``prompt_token_ids``, maybe ``id``, and sampling fields."""
    for line, value in objects_of_lines(source, '{"prompt": "import os"}'):
        try:
            if isinstance(value, DeepInferError):
                raise value
            yield _object_input(value, params, line)
        except DeepInferError as err:
            yield PromptInput(None, params, line=line, error=err)


def objects_of_lines(
    source: Iterable[bytes], example: str
) -> Iterator[tuple[int, Mapping[str, object] | DeepInferError]]:
    """Each line's number and JSON object, or what is wrong with the line. ``example``: a line as it should be."""
    for line, raw in _lines(source):
        try:
            yield line, _parse_object(_within_limit(raw, line), line, example)
        except DeepInferError as err:
            yield line, err


def _lines(source: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    for line, raw in enumerate(source, 1):
        text = raw.removesuffix(b"\n")
        if len(text) <= MAX_LINE_BYTES:  # the others are refused, by their length
            text = text.rstrip(b"\r\n")
            if line == 1:
                text = text.removeprefix(b"\xef\xbb\xbf")
        yield line, text


def _within_limit(raw: bytes, line: int) -> bytes:
    if len(raw) > MAX_LINE_BYTES:
        raise InvalidInputFile(
            f"line {line} is longer than {MAX_LINE_BYTES} bytes",
            remedy="give each prompt a line of its own, or pass the prompt through the Python interface",
            details={"line": line, "limit": MAX_LINE_BYTES},
        )
    return raw


def _parse_object(raw: bytes, line: int, example: str) -> Mapping[str, object]:
    remedy = f"write one JSON object per line, such as {example}"
    details = {"line": line}
    if not raw.strip():
        raise InvalidInputFile(f"line {line} is empty", remedy=remedy, details=details)
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as err:
        raise _not_utf8(err.start, line) from None
    except (ValueError, RecursionError) as err:
        raise InvalidInputFile(f"line {line} is not JSON", reason=str(err), remedy=remedy, details=details) from None
    if not isinstance(value, dict):
        kind = "null" if value is None else type(value).__name__
        raise InvalidInputFile(f"line {line} is {kind}, not an object", remedy=remedy, details=details)
    return value


def _not_utf8(byte: int, line: int | None = None) -> InvalidPrompt:
    where = "the prompt" if line is None else f"line {line}"
    details = {"byte": byte} if line is None else {"byte": byte, "line": line}
    return InvalidPrompt(f"{where} is not UTF-8 (byte {byte})", remedy="convert the input to UTF-8", details=details)


def encode_prompt(
    prompt: str | tuple[object, ...], tokenizer: Encoder, *, vocab_size: int, max_model_len: int
) -> tuple[int, ...]:
    """Token ids of ``prompt``: text is encoded, ids are checked and taken as they are.

    Raises InvalidPrompt when it is empty, has an id outside the vocabulary, or leaves no room for one new token.
    """
    if not prompt:
        raise InvalidPrompt("the prompt is empty", remedy="give at least one character or token id")
    limit = max_model_len - 1
    if not isinstance(prompt, str):
        if len(prompt) > limit:
            raise _too_long(f"{len(prompt)} tokens", len(prompt), limit)
        return tuple(_checked_id(item, vocab_size) for item in prompt)
    check_length(prompt, tokenizer, max_model_len=max_model_len)
    ids = tuple(tokenizer.encode(prompt))
    if len(ids) > limit:
        raise _too_long(f"{len(ids)} tokens", len(ids), limit)
    return ids


def check_length(prompt: str, tokenizer: Encoder, *, max_model_len: int) -> None:
    """Raise InvalidPrompt for text that is too long whatever its tokens are.

    Encoding it would take seconds, and hundreds of bytes of memory per token.
    """
    limit = max_model_len - 1
    least = tokenizer.least_tokens(prompt)
    if least > limit:
        size = len(prompt.encode("utf-8", "surrogatepass"))
        raise _too_long(f"{size} bytes, which are at least {least} tokens", least, limit)


def _too_long(size: str, tokens: int, limit: int) -> InvalidPrompt:
    return InvalidPrompt(
        f"the prompt has {size}, the limit is {limit}",
        reason=f"max_model_len is {limit + 1}, and one token must be left for the answer",
        remedy="shorten the prompt, or raise --max-model-len if the model and memory allow it",
        details={"tokens": tokens, "limit": limit},
    )


def _checked_id(item: object, vocab_size: int) -> int:
    number = _as_int(item)
    if number is None or not 0 <= number < vocab_size:
        raise InvalidPrompt(
            f"prompt token id {item!r} is outside the vocabulary",
            remedy=f"use integers from 0 to {vocab_size - 1}",
            details={"allowed": f"0..{vocab_size - 1}"},
        )
    return number
