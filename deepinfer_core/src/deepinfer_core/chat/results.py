"""Requests of the engine to results of a chat, whole or as they grow."""

from __future__ import annotations

from deepinfer_core.chat.answer import AnswerDelta, AnswerParser
from deepinfer_core.chat.outputs import ChatChoice, ChatChunk, ChatOutput, ChatUsage
from deepinfer_core.requests.outputs import Completion
from deepinfer_core.requests.request import Request
from deepinfer_core.requests.runs import Run, RunIterator


def parser_of(request: Request) -> AnswerParser | None:
    """A fresh parser for the answer of ``request``; None: it failed before it became a chat."""
    if request.chat is None:
        return None
    return AnswerParser(request.chat, f"{request.seed}")


def chat_choice(request: Request, parser: AnswerParser | None = None) -> ChatChoice:
    """The choice that a finished request is. ``parser``: one that has read its whole text."""
    completion = request.completion()
    if parser is None:
        parser = parser_of(request)
        if parser is not None:
            parser.feed(completion.text)
    if parser is None:
        return ChatChoice(completion.index, "", "", (), completion.finish_reason, completion)
    parser.finish()
    calls = parser.tool_calls()
    begun = {} if request.chat is None else request.chat.begun
    return ChatChoice(
        index=completion.index,
        content=parser.content,
        reasoning=parser.reasoning,
        tool_calls=calls,
        finish_reason="tool_calls" if calls and completion.finish_reason == "stop" else completion.finish_reason,
        completion=completion,
        begun_content=begun.get("content", ""),
        begun_reasoning=begun.get("reasoning", ""),
    )


def chat_output(request: Request, choices: tuple[ChatChoice, ...] | None = None) -> ChatOutput:
    """The result of a conversation whose samples are all finished."""
    output = request.output()
    if choices is None:
        choices = tuple(chat_choice(sample) for sample in request.samples)
    usage = ChatUsage(
        prompt_tokens=len(output.prompt_token_ids),
        completion_tokens=sum(len(completion.token_ids) for completion in output.outputs),
        reasoning_tokens=sum(reasoning_tokens(request, completion) for completion in output.outputs),
        cached_tokens=output.cached_tokens,
    )
    return ChatOutput(output.index, output.request_id, choices, usage, output)


def reasoning_tokens(request: Request, completion: Completion) -> int:
    """Tokens before the one that ends reasoning; all of them where it did not come."""
    if request.chat is None or not request.chat.starts_in_reasoning:
        return 0
    ids = completion.token_ids
    end = request.chat.thinking_end_id
    return ids.index(end) if end in ids else len(ids)


class ChunkMaker:
    """Turns news of requests into chunks; keeps a parser for each answer that is under way."""

    def __init__(self) -> None:
        self._parsers: dict[tuple[int, int], AnswerParser | None] = {}
        self._choices: dict[int, dict[int, ChatChoice]] = {}

    def chunk(self, request: Request) -> ChatChunk:
        """What is new of ``request`` since the last call."""
        key = (request.index, request.sample)
        if key not in self._parsers:
            self._parsers[key] = parser_of(request)
        parser = self._parsers[key]
        piece = request.chunk()
        delta = AnswerDelta() if parser is None else parser.feed(piece.text)
        choice = output = None
        if piece.completion is not None:
            del self._parsers[key]
            if parser is not None:
                delta = _together(delta, parser.finish())
            choice = chat_choice(request, parser)
            self._choices.setdefault(request.index, {})[request.sample] = choice
        if piece.output is not None:
            made = self._choices.pop(request.index, {})
            samples = request.samples
            output = chat_output(request.head, tuple(made.get(s.sample) or chat_choice(s) for s in samples))
        return ChatChunk(
            request.index,
            request.request_id,
            request.sample,
            delta,
            piece.token_ids,
            choice,
            output,
            piece.logprobs,
            piece.emulated,
        )


def _together(first: AnswerDelta, second: AnswerDelta) -> AnswerDelta:
    return AnswerDelta(
        first.content + second.content, first.reasoning + second.reasoning, first.tool_calls + second.tool_calls
    )


class ChatStream(RunIterator[ChatChunk]):
    """Chunks of all conversations of a call, as they come. Close it to abort what still runs."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._maker = ChunkMaker()

    def _piece(self, request: Request) -> ChatChunk | None:
        chunk = self._maker.chunk(request)
        return chunk if chunk.delta or chunk.token_ids or chunk.finished_choice is not None else None
