"""A conversation as token ids: control tokens where the encoder puts them, and nowhere else.

The library says which ranges of the rendered prompt are its own control tokens. Everything between them, all that
messages, tools and results contain, is encoded without the added vocabulary: ``</think>`` or ``<｜User｜>`` spelled
there is plain text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from deepinfer_core.chat.conversation import Conversation
from deepinfer_core.chat.recipe import recipe
from deepinfer_core.errors import InvalidMessages, ModelCannotChat
from deepinfer_core.requests.prompts import check_length
from deepinfer_core.text.tokenizer import Tokenizer

NEEDED = ("Bos", "Eos", "System", "User", "Assistant", "ThinkingStart", "ThinkingEnd")
"""Control tokens of every chat, by the library's names."""


@frozen(eq=False)
class ChatPrompt:
    """A rendered conversation, and what reading its answer needs."""

    token_ids: tuple[int, ...] = field(repr=False)
    text: str
    """The prompt as the library renders it. Not unambiguous: a control token that a message spells looks the same."""
    request: Any = field(repr=False)
    """The library's ``ConversationRequest``: how its answer is to be parsed."""
    token_bytes: Sequence[bytes] = field(repr=False)
    """Bytes of each token in the answer, where the marks of reasoning and calls are seen."""
    starts_in_reasoning: bool
    thinking_end_id: int
    dsml_id: int | None
    """The token that opens tool calls; None: calls are not looked for."""
    default_max_tokens: int = 1
    """New tokens where the caller names no number: what the release recommends, within the context."""
    begun: Mapping[str, str] = field(factory=dict)
    """``content`` and ``reasoning`` of the message that the answer goes on with."""

    @property
    def stops_between(self) -> tuple[int | None, int | None]:
        """The tokens between which stop strings of the caller count: after reasoning, and before calls."""
        return self.thinking_end_id if self.starts_in_reasoning else None, self.dsml_id


class ChatEncoder:
    """Renders conversations for one tokenizer. Raises ModelCannotChat where it lacks control tokens of a chat."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        library = recipe()
        self._tokenizer = tokenizer
        self._ids = {name: tokenizer.control_id(_spelling(library, name)) for name in (*NEEDED, "Dsml")}
        _require(library, self._ids, NEEDED, "chat")
        end = self._ids["Eos"]
        if end not in tokenizer.eos_ids:
            raise ModelCannotChat(
                f"{_spelling(library, 'Eos')} (token {end}) ends no answer of this model",
                reason=f"its end tokens are {sorted(tokenizer.eos_ids)}",
                remedy="take tokenizer and generation config of a model that was trained to chat",
                details={"missing": [_spelling(library, "Eos")]},
            )
        self._encoding = library.DeepseekV41Encoding().with_tokenizer(
            library.Tokenizer.from_str(tokenizer.description())
        )
        table = list(tokenizer.token_bytes)
        for name in ("ThinkingStart", "ThinkingEnd", "Dsml"):  # a tokenizer may call them special, and hide them
            token = self._ids[name]
            if token is not None:
                table[token] = _spelling(library, name).encode()
        self._table = table

    @property
    def thinking_end_id(self) -> int:
        """The token that ends reasoning."""
        return self._id("ThinkingEnd")

    def encode(
        self,
        conversation: Conversation,
        *,
        max_model_len: int,
        response_format: Mapping[str, object] | None = None,
    ) -> ChatPrompt:
        """Raises InvalidMessages, InvalidPrompt for a conversation that is too long, ModelCannotChat for tools that
        the tokenizer has no mark for.
        """
        library = recipe()
        request = conversation.request(response_format)
        parsing = request.parsing_options
        if parsing.parse_tool_calls:
            _require(library, self._ids, ("Dsml",), "call tools")
        rendered = self._encoding.render_conversation(request.conversation)
        check_length(rendered.prompt, self._tokenizer, max_model_len=max_model_len)
        try:
            ids = tuple(self._encoding.encode(request.conversation))
        except RuntimeError as err:  # a control token that this conversation needs and the tokenizer lacks
            raise InvalidMessages("the conversation cannot be encoded", reason=str(err)) from err
        last = request.conversation.messages[-1]
        begun = {"content": last.content, "reasoning": last.reasoning_content or ""} if last.prefix else {}
        stage = parsing.thinking_initial_stage
        return ChatPrompt(
            token_ids=ids,
            text=rendered.prompt,
            request=request,
            token_bytes=self._table,
            starts_in_reasoning=stage is not None and stage.starts_in_reasoning(),
            thinking_end_id=self.thinking_end_id,
            dsml_id=self._ids["Dsml"] if parsing.parse_tool_calls else None,
            default_max_tokens=_default_max_tokens(request, len(ids), max_model_len),
            begun=begun,
        )

    def _id(self, name: str) -> int:
        token = self._ids[name]
        if token is None:
            raise ModelCannotChat(f"the tokenizer has no {name}")
        return token


def _default_max_tokens(request: Any, prompt_tokens: int, max_model_len: int) -> int:
    try:
        return int(request.resolve_max_tokens(prompt_tokens, max_model_len))
    except recipe().ConversionError:  # the prompt is too long, which the engine says better
        return 1


def _spelling(library: Any, name: str) -> str:
    spelling: str = getattr(library.SpecialToken, name).default_str()
    return spelling


def _require(library: Any, ids: Mapping[str, int | None], names: Sequence[str], deed: str) -> None:
    missing = [_spelling(library, name) for name in names if ids[name] is None]
    if missing:
        raise ModelCannotChat(
            f"this model cannot {deed}: its tokenizer lacks {', '.join(missing)}",
            reason="these control tokens of the V4.1 chat form are no added tokens of tokenizer.json",
            remedy="use a V4.1 chat model, or give raw prompts to deepinfer generate",
            details={"missing": missing},
        )
