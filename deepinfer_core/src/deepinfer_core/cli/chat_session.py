"""A conversation that goes on: its history, and one answer at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from deepinfer_core.interrupts import StepInterrupted, forget_interrupt

if TYPE_CHECKING:
    from deepinfer_core.chat import ChatChunk, ChatOutput
    from deepinfer_core.llm import LLM


class ChatSession:
    """The turns so far. A turn that failed leaves no trace; one that was cut short keeps what was said.

    :param sampling: Sampling fields that the user gave.
    :param options: Fields of ``ChatOptions`` that the user gave.
    """

    def __init__(
        self, llm: LLM, *, system: str | None, sampling: Mapping[str, object], options: Mapping[str, Any]
    ) -> None:
        self._llm = llm
        self._system = system
        self._sampling = dict(sampling)
        self._options = dict(options)
        self.messages: list[dict[str, object]] = []
        self.reset()

    def reset(self) -> None:
        """Forget the turns; the system's message stays."""
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]

    def is_full(self, output: ChatOutput) -> bool:
        """Whether the conversation has as many tokens as the engine takes, so that no answer goes further."""
        used = output.usage.prompt_tokens + output.usage.completion_tokens
        return used >= self._llm.built.max_model_len

    def ask(
        self, text: str, show: Callable[[ChatChunk], object], *, keep_on_interrupt: bool = True
    ) -> ChatOutput | None:
        """One turn: ``show`` gets the answer as it comes; the whole of it is returned.

        :param keep_on_interrupt: Whether Ctrl-C ends the answer only; the result is then None, and what was said so far
            is part of the history. Else it rises as KeyboardInterrupt, and so does a second one that breaks a step.
        """
        asked: list[dict[str, object]] = [*self.messages, {"role": "user", "content": text}]
        said: list[str] = []
        output = None
        stream = self._llm.chat_stream({"messages": asked, **self._sampling}, **self._options)
        try:
            with stream:
                for chunk in stream:
                    said.append(chunk.content)
                    show(chunk)
                    output = chunk.output or output
        except StepInterrupted:
            raise
        except KeyboardInterrupt:
            if not keep_on_interrupt:
                raise
            forget_interrupt()
            if content := "".join(said):
                self.messages = [*asked, {"role": "assistant", "content": content}]
            return None
        if output is not None and output.error is None:
            self.messages = [*asked, output.as_message()]
        return output
