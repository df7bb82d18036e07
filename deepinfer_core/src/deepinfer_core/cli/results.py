"""Results on standard output or in a file, in input order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from deepinfer_core.cli.json_lines import json_line
from deepinfer_core.requests.request import Request
from deepinfer_core.requests.token_logprobs import TokenLogprob

if TYPE_CHECKING:
    from deepinfer_core.chat.results import ChunkMaker

Form = Literal["text", "json"]


class View:
    """How requests look as results: those of prompts."""

    def record(self, head: Request) -> dict[str, object]:
        """A finished prompt as data; ``line`` is its line in the prompts file."""
        record = self._record(head)
        return record if head.line is None else {"index": record["index"], "line": head.line, **record}

    def _record(self, head: Request) -> dict[str, object]:
        return head.output().as_record()

    def piece(self, sample: Request) -> dict[str, object]:
        """What is new of a sample, as data; empty if nothing is."""
        chunk = sample.chunk()
        if not (chunk.text or chunk.token_ids):
            return {}
        return _with_logprobs({"delta": chunk.text, "token_ids": list(chunk.token_ids)}, chunk.logprobs)

    def text(self, sample: Request) -> str:
        """What is new of a sample, to be read."""
        return sample.chunk().text


def _with_logprobs(piece: dict[str, object], logprobs: Sequence[TokenLogprob] | None) -> dict[str, object]:
    if logprobs is not None:
        piece["logprobs"] = [item.as_record() for item in logprobs]
    return piece


class RepeatableView(View):
    """Of another view, with what a run needs to be repeated beside each result (``deepinfer_core.replay``)."""

    def __init__(self, view: View, run: Mapping[str, Any]) -> None:
        self._view = view
        self._run = run

    def _record(self, head: Request) -> dict[str, object]:
        from deepinfer_core.replay import request_fields

        return {**self._view._record(head), **request_fields(head), "run": self._run}


class ChatView(View):
    """Of conversations: content apart from reasoning, and calls of tools."""

    def __init__(self) -> None:
        from deepinfer_core.chat.results import ChunkMaker

        self._maker: ChunkMaker = ChunkMaker()

    def _record(self, head: Request) -> dict[str, object]:
        from deepinfer_core.chat.results import chat_output

        return chat_output(head).as_record()

    def piece(self, sample: Request) -> dict[str, object]:
        chunk = self._maker.chunk(sample)
        if not (chunk.delta or chunk.token_ids):
            return {}
        piece: dict[str, object] = {"delta": chunk.content, "reasoning": chunk.reasoning}
        if chunk.tool_calls:
            piece["tool_calls"] = [call.as_record() for call in chunk.tool_calls]
        piece["token_ids"] = list(chunk.token_ids)
        return _with_logprobs(piece, chunk.logprobs)

    def text(self, sample: Request) -> str:
        chunk = self._maker.chunk(sample)
        calls = () if chunk.finished_choice is None else chunk.finished_choice.tool_calls
        return chunk.content + "".join(f"\n[{call.name}] {call.arguments}" for call in calls)


class OrderedWriter:
    """Writes results in the order of the prompts, and of the samples of a prompt, each as soon as those before it are.

    When streaming, the first unfinished sample is written as it grows and the others wait for their turn.
    """

    def __init__(
        self,
        stream: BinaryIO,
        form: Form,
        *,
        streaming: bool = False,
        headers: bool = False,
        view: View | None = None,
    ) -> None:
        self._stream = stream
        self._view = View() if view is None else view
        self._form = form
        self._streaming = streaming
        self._headers = headers
        self._next = 0
        self._sample = 0
        self._waiting: dict[int, Request] = {}
        self._started = False

    def news(self, request: Request) -> None:
        """``request`` grew or ended. Each piece is flushed, so that an interruption loses nothing that was written."""
        if request.finished or self._streaming:
            self._waiting[request.index] = request.head
        wrote = False
        while (head := self._waiting.get(self._next)) is not None:
            self._write(head)
            wrote = True
            if not _is_complete(head):
                break
            del self._waiting[self._next]
            self._next += 1
        if wrote:
            self._stream.flush()

    def drain(self, unfinished: Iterable[Request]) -> None:
        """After an interruption: write what has ended, and what was cut short, without waiting for the others."""
        heads = [request for request in unfinished if any(sample.token_ids for sample in request.samples)]
        self._waiting.update((head.index, head) for head in heads)
        for index in sorted(self._waiting):
            head = self._waiting.pop(index)
            if index != self._next:
                self._sample = 0  # of the prompt that was being written
            if _is_complete(head):
                self._write(head)
        self._stream.flush()

    def _write(self, head: Request) -> None:
        """What is new of a prompt: as far as its samples go, in order."""
        samples = head.samples
        if self._form == "text" or self._streaming:
            for sample in samples[self._sample :]:
                if not (sample.finished or self._streaming):
                    return
                if self._form == "text":
                    self._write_text(sample)
                else:
                    self._write_piece(sample)
                if not sample.finished:
                    return
                self._sample += 1
        if _is_complete(head):
            self._sample = 0
            if self._form == "json":
                self._stream.write(json_line(self._view.record(head)))

    def _write_piece(self, sample: Request) -> None:
        new = self._view.piece(sample)
        if new:
            piece: dict[str, object] = {"index": sample.index, "id": sample.request_id}
            if len(sample.samples) > 1:
                piece["sample"] = sample.sample
            if sample.emulated:
                piece["emulated"] = True
            self._stream.write(json_line({**piece, **new}))

    def _write_text(self, sample: Request) -> None:
        if not self._started:
            self._started = True
            many = len(sample.samples) > 1
            if self._headers or many:
                gap = "\n" if sample.index or sample.sample else ""
                name = f"{sample.index + 1}.{sample.sample + 1}" if many else f"{sample.index + 1}"
                self._stream.write(f"{gap}==> {name} <==\n".encode())
        self._stream.write(self._view.text(sample).encode("utf-8", "backslashreplace"))
        if sample.finished:
            self._started = False
            self._stream.write(b"\n")


def _is_complete(head: Request) -> bool:
    return all(sample.finished for sample in head.samples)
