"""An answer as it comes: reasoning, content and tool calls, from the library's stream parser.

However the text is split, the pieces joined are the same. Reasoning ends at ``</think>``; tool calls are looked for
only if the prompt shows tools; text that may still become a mark is held back until it is decided.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from attrs import field, frozen

from deepinfer_core.chat.prompt import ChatPrompt
from deepinfer_core.chat.recipe import MODEL, recipe
from deepinfer_core.chat.tool_calls import ToolCall, joined, read_calls


@frozen
class ToolCallDelta:
    """More of one tool call: ``id`` and ``name`` come first and once, then pieces of ``arguments``."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""

    def as_record(self) -> dict[str, object]:
        record: dict[str, object] = {"index": self.index}
        if self.id:
            record |= {"id": self.id, "name": self.name}
        return record | {"arguments": self.arguments}


@frozen
class AnswerDelta:
    """What is new of an answer."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)


class AnswerParser:
    """Parses one answer to ``prompt``. Feed it the text in order, then finish it.

    :param key: Tells answers apart; ids of tool calls are made from it and the prompt, so that a repeated run has the
        same ids and another turn of the conversation has others.
    """

    def __init__(self, prompt: ChatPrompt, key: str = "") -> None:
        library = recipe()
        generator = library.ChatCompletionRequest.chunk_generator(prompt.request, "answer", MODEL)
        self._library = library
        self._processor = library.StreamProcessor(generator, prompt.request.parsing_options)
        self._processor.push(library.InferenceChunk.ready())
        self._is_open: bool = prompt.request.parsing_options.starts_in_tool_calls
        self._reads_calls: bool = prompt.request.parsing_options.parse_tool_calls
        self._seed = f"{key}:{','.join(map(str, prompt.token_ids))}".encode()
        self._text: list[str] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[list[str]] = []
        self._finished = False

    def feed(self, text: str) -> AnswerDelta:
        """Add text; what it decides."""
        if not text or self._finished:
            return AnswerDelta()
        self._text.append(text)
        return self._taken(self._processor.push(self._library.InferenceChunk.text(text, 1)))

    def finish(self) -> AnswerDelta:
        """No more text comes: what was held back. A second call gives nothing."""
        if self._finished:
            return AnswerDelta()
        self._finished = True
        chunks = [
            *self._processor.push(self._library.InferenceChunk.finish(self._library.InferenceFinishReason.Stop)),
            *self._processor.finish(),
        ]
        return self._taken(chunks)

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls so far; call it once the answer is finished."""
        if not self._calls:
            return ()
        found = [(identity, name, "".join(pieces)) for identity, name, *pieces in self._calls]
        return joined(found, read_calls("".join(self._text), is_open=self._is_open))

    def _taken(self, chunks: Iterable[Any]) -> AnswerDelta:
        content: list[str] = []
        reasoning: list[str] = []
        calls: dict[int, ToolCallDelta] = {}
        for chunk in chunks:
            for choice in json.loads(chunk.to_json())["choices"]:
                delta = choice["delta"]
                content.append(delta.get("content") or "")
                reasoning.append(delta.get("reasoning_content") or "")
                for call in delta.get("tool_calls") or ():
                    self._take_call(call, calls)
        self._content += content
        self._reasoning += reasoning
        return AnswerDelta("".join(content), "".join(reasoning), tuple(calls.values()))

    def _take_call(self, call: dict[str, Any], deltas: dict[int, ToolCallDelta]) -> None:
        index, function = call["index"], call["function"]
        known = deltas.get(index, ToolCallDelta(index))
        identity, name, arguments = known.id, known.name, function.get("arguments") or ""
        if index == len(self._calls):
            # The library's own ids are random, so that no run could be compared with another.
            identity = f"call_{index:02d}_{hashlib.sha256(self._seed + b'%d' % index).hexdigest()[:20]}"
            self._calls.append([identity, ""])
        if function.get("name"):
            name += function["name"]
            self._calls[index][1] += function["name"]
        self._calls[index].append(arguments)
        deltas[index] = ToolCallDelta(index, identity, name, known.arguments + arguments)
