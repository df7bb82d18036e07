"""What a chat gives back: one ``ChatOutput`` per conversation, and ``ChatChunk`` pieces while it grows."""

from __future__ import annotations

from attrs import field, frozen

from deepinfer_core.chat.answer import AnswerDelta, ToolCallDelta
from deepinfer_core.chat.tool_calls import ToolCall
from deepinfer_core.errors import DeepInferError
from deepinfer_core.requests.outputs import Completion, RequestOutput
from deepinfer_core.requests.token_logprobs import TokenLogprob


@frozen
class ChatUsage:
    """Tokens of a conversation and its answers; of all its choices together."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    """Of the answers' tokens, those before the end of reasoning."""
    cached_tokens: int

    def as_record(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "cached_tokens": self.cached_tokens,
        }


@frozen
class ChatChoice:
    """One answer. A failed one has ``error`` set and keeps what was said so far.

    ``finish_reason`` is that of the completion, or ``tool_calls`` where an answer that ended by itself calls tools.
    """

    index: int
    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    completion: Completion = field(repr=False)
    """The same before it was parsed: its whole text, token ids, seed."""
    begun_content: str = field(default="", repr=False)
    begun_reasoning: str = field(default="", repr=False)

    @property
    def error(self) -> DeepInferError | None:
        return self.completion.error

    @property
    def ok(self) -> bool:
        """True if the answer ended by itself: at a stop or at a length limit."""
        return self.completion.ok

    def as_message(self) -> dict[str, object]:
        """The assistant's message for the next turn; with ``continue_last``, the whole of the continued one."""
        message: dict[str, object] = {"role": "assistant", "content": self.begun_content + self.content}
        reasoning = self.begun_reasoning + self.reasoning
        if reasoning:
            message["reasoning_content"] = reasoning
        if self.tool_calls:
            calls = [call.as_record() for call in self.tool_calls]
            message["tool_calls"] = [{k: v for k, v in call.items() if k != "problem"} for call in calls]
        return message

    def as_record(self) -> dict[str, object]:
        """JSON-serialisable data: that of the completion, its text parsed."""
        completion = {key: value for key, value in self.completion.as_record().items() if key not in ("index", "text")}
        return {
            "index": self.index,
            "content": self.content,
            "reasoning": self.reasoning,
            "tool_calls": [call.as_record() for call in self.tool_calls],
            **completion,
            "finish_reason": self.finish_reason,
        }


@frozen
class ChatOutput:
    """The result of one conversation: ``SamplingParams.n`` choices.

    ``content``, ``reasoning``, ``tool_calls``, ``finish_reason`` and ``error`` are those of the first one.
    """

    index: int
    """Position among the conversations of the call, from 0."""
    request_id: str
    choices: tuple[ChatChoice, ...]
    usage: ChatUsage
    output: RequestOutput = field(repr=False)
    """The same before it was parsed."""

    @property
    def content(self) -> str:
        return self.choices[0].content

    @property
    def reasoning(self) -> str:
        return self.choices[0].reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.choices[0].tool_calls

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def error(self) -> DeepInferError | None:
        return self.choices[0].error

    @property
    def ok(self) -> bool:
        """True if every choice ended by itself: at a stop or at a length limit."""
        return all(choice.ok for choice in self.choices)

    def as_message(self) -> dict[str, object]:
        """The first choice as the assistant's message for the next turn."""
        return self.choices[0].as_message()

    def as_record(self) -> dict[str, object]:
        """JSON-serialisable data; ``choices`` lists the answers where there are several."""
        first = {key: value for key, value in self.choices[0].as_record().items() if key != "index"}
        record: dict[str, object] = {
            "index": self.index,
            "id": self.request_id,
            **first,
            "usage": self.usage.as_record(),
        }
        if self.output.emulated:
            record["emulated"] = True
        if self.output.prompt_logprobs is not None:
            record["prompt_logprobs"] = list(self.output.prompt_logprobs)
        if len(self.choices) > 1:
            record["choices"] = [choice.as_record() for choice in self.choices]
        return record


@frozen
class ChatChunk:
    """What is new of one choice. The joined pieces of a choice are its content, reasoning and tool calls."""

    index: int
    request_id: str
    choice: int
    delta: AnswerDelta
    token_ids: tuple[int, ...] = ()
    finished_choice: ChatChoice | None = None
    """The whole choice; set on its last chunk."""
    output: ChatOutput | None = None
    """The whole result; set on the last chunk of the conversation."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each of ``token_ids``, where ``SamplingParams`` asked for them."""
    emulated: bool = False
    """An emulated backend made it."""

    @property
    def content(self) -> str:
        return self.delta.content

    @property
    def reasoning(self) -> str:
        return self.delta.reasoning

    @property
    def tool_calls(self) -> tuple[ToolCallDelta, ...]:
        return self.delta.tool_calls
