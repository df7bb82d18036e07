"""``LLM``: generate text in three lines of Python (``spec/sampling.md`` 5.1)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.requests.outputs import RequestOutput
from deepinfer_core.requests.prompts import Prompt, PromptInput, inputs_of
from deepinfer_core.requests.request import Request
from deepinfer_core.requests.runs import Run, Stream

if TYPE_CHECKING:
    from deepinfer_core.assembly.build import Built
    from deepinfer_core.assembly.parts import Parts
    from deepinfer_core.assembly.prefix import PrefixCacheReport
    from deepinfer_core.chat.conversation import Conversation
    from deepinfer_core.chat.options import ChatOptions
    from deepinfer_core.chat.outputs import ChatOutput
    from deepinfer_core.chat.prompt import ChatEncoder, ChatPrompt
    from deepinfer_core.chat.results import ChatStream
    from deepinfer_core.config import EngineConfig
    from deepinfer_core.pipeline import PhaseTimes
    from deepinfer_core.pipeline.draft_report import DraftReport
    from deepinfer_core.structured.report import GrammarReport
    from deepinfer_core.text.tokenizer import Tokenizer

Output = TypeVar("Output")
Chat = Sequence[Mapping[str, object]] | Mapping[str, object]
"""One conversation: its messages, or a mapping with ``messages`` and settings of its own."""

WINDOW_FACTOR = 2
"""Prompts in the engine for each sequence of a full step: enough that its queue never runs dry."""


class LLM:
    """A model on a backend, ready to generate::

        with LLM() as llm:
            print(llm.generate("import os")[0].text)

    :param model: Checkpoint directory; without one, the small checkpoint that a model plugin brings.
    :param backend: ``auto`` or the name of a backend.
    :param settings: Any other setting of ``EngineConfig``, such as ``kv_memory="512MiB"`` or ``seed=1``.

    Raises a ``DeepInferError`` that says what is wrong with model, backend or settings. May be used from several
    threads; the calls then share the steps of one engine. In a forked copy of its process calls raise EngineError, and
    ``close`` does nothing. A signal handler may cancel and close, but not generate.
    """

    def __init__(self, model: str | None = None, *, backend: str = "auto", **settings: object) -> None:
        from deepinfer_core.assembly.assemble import assemble  # heavy: imports the chosen plugins
        from deepinfer_core.assembly.native_core import load_native
        from deepinfer_core.config import EngineConfig

        load_native()  # before the weights: a wrong build should not cost that time
        given = {"model": None if model is None else str(model), "backend": backend, **settings}
        config = EngineConfig.resolve(given, flag_origin="argument")
        for line in config.warnings:
            warnings.warn(line, stacklevel=2)
        self._start(assemble(config), None)
        for line in self.built.plan.warnings:
            warnings.warn(line, stacklevel=2)

    @classmethod
    def from_assembly(cls, assembly: Parts, tokenizer: Tokenizer | None = None) -> Self:
        """An LLM over parts that are already there (``deepinfer_core.assembly.assemble.Assembly``); it closes them."""
        self = cls.__new__(cls)
        self._start(assembly, tokenizer)
        return self

    def _start(self, assembly: Parts, tokenizer: Tokenizer | None) -> None:
        from deepinfer_core.assembly.announcing import announce
        from deepinfer_core.assembly.build import build_engine  # needs the native core

        self.assembly = assembly
        try:
            self.built: Built = build_engine(assembly, tokenizer)
        except BaseException:
            self._close_assembly()
            raise
        for line in self.built.notes:
            announce(line)
        self.config: EngineConfig = assembly.config
        self._engine = self.built.engine

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """One result per prompt, in order, also for prompts that fail (their ``error`` is set).

        Text is taken as it stands: control tokens spelled in it are control tokens. ``chat`` renders conversations.

        A result has ``SamplingParams.n`` completions in ``outputs``.

        :param prompts: A string, a list of token ids, a mapping (``{"prompt": ..., "max_tokens": ...}``), or an
            iterable of these.
        :param sampling_params: For all prompts, or a list with one for each.

        Raises InvalidParameter, before anything runs, for parameters outside their range. Ctrl-C aborts what still
        runs and raises KeyboardInterrupt; its attribute ``partial`` is the list of results of the prompts read so far,
        unfinished ones with reason ``abort``.
        """
        return self._collect(self.run(inputs_of(prompts, self._checked(sampling_params))), Request.output)

    def _collect(self, run: Run, output_of: Callable[[Request], Output]) -> list[Output]:
        """The results of all prompts of ``run``, in order."""
        done: dict[int, Output] = {}
        try:
            for request in run:
                if not request.head.open_samples:
                    done[request.index] = output_of(request.head)
        except BaseException as stopped:
            for request in run.stop():
                done[request.index] = output_of(request.head)
            if isinstance(stopped, KeyboardInterrupt):
                stopped.partial = _in_order(done)  # type: ignore[attr-defined]  # documented above
            raise
        return _in_order(done)

    def stream(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Stream:
        """An iterator of ``StreamChunk``: new text of any of the prompts, as it comes.

        A chunk belongs to one ``sample`` of its prompt. The last one of a prompt has its ``output``. ``cancel(index)``
        ends one prompt, ``close()`` all of them.
        """
        return Stream(self.run(inputs_of(prompts, self._checked(sampling_params)), streaming=True))

    def chat(
        self,
        messages: Chat | Iterable[Chat],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        tool_choice: str | Mapping[str, object] = "auto",
        thinking: bool = True,
        effort: str | None = None,
        continue_last: bool = False,
    ) -> list[ChatOutput]:
        """Answer conversations: one result per conversation, in order, also for those that fail.

        :param messages: A list of messages (``{"role": "user", "content": "Hello"}``), a mapping with ``messages`` and
            settings of its own (``{"messages": [...], "thinking": False, "max_tokens": 50}``), or an iterable of these.
        :param sampling_params: For all, or a list with one for each; without, an answer may have 8192 tokens, with
            thinking 65536, with effort ``max`` 131072, and what fits into the context. Stop strings count in the
            content only, not in reasoning or tool calls.
        :param tools: ``tool_choice``, ``thinking``, ``effort``, ``continue_last``: see ``ChatOptions``.

        Control tokens spelled in messages are plain text. Raises LibraryMissing without ``deepseek-recipe``,
        ModelCannotChat where the tokenizer lacks control tokens, InvalidParameter for options outside their range. A
        conversation that is none has an ``error`` (InvalidMessages) and the others go on. Ctrl-C as in ``generate``.
        """
        options = _chat_options(tools, tool_choice, thinking, effort, continue_last)
        run = self.run(self._conversations(messages, sampling_params, options))
        return self._collect(run, _chat_output)

    def chat_stream(
        self,
        messages: Chat | Iterable[Chat],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        tool_choice: str | Mapping[str, object] = "auto",
        thinking: bool = True,
        effort: str | None = None,
        continue_last: bool = False,
    ) -> ChatStream:
        """``chat`` as an iterator of ``ChatChunk``: new reasoning, content and tool calls, as they come."""
        from deepinfer_core.chat.results import ChatStream

        options = _chat_options(tools, tool_choice, thinking, effort, continue_last)
        return ChatStream(self.run(self._conversations(messages, sampling_params, options), streaming=True))

    def _conversations(self, messages: object, params: object, options: ChatOptions) -> Iterator[PromptInput]:
        from deepinfer_core.chat.inputs import conversations_of

        _ = self.chat_encoder  # a model that cannot chat is an error of the call, not of a conversation
        return conversations_of(messages, self._checked(params), options, self.encode_chat)

    def encode_chat(
        self, conversation: Conversation, params: SamplingParams | None = None
    ) -> tuple[ChatPrompt, SamplingParams]:
        """A conversation as the model sees it, and the parameters that it is sampled with.

        A grammar starts behind the reasoning, and the prompt shows a JSON schema. Raises as ``chat`` reports.
        """
        from deepinfer_core.chat.structured import behind_reasoning, response_format

        params = SamplingParams() if params is None else params
        prompt = self.chat_encoder.encode(
            conversation,
            max_model_len=self.built.max_model_len,
            response_format=response_format(params, conversation.options),
        )
        return prompt, behind_reasoning(params, prompt)

    @cached_property
    def chat_encoder(self) -> ChatEncoder:
        """What renders conversations for this model. Raises LibraryMissing, ModelCannotChat."""
        from deepinfer_core.chat.prompt import ChatEncoder

        return ChatEncoder(self.built.tokenizer)

    def run(
        self,
        inputs: Iterator[PromptInput],
        *,
        streaming: bool = False,
        is_ready: Callable[[], bool] | None = None,
        on_held_interrupt: Callable[[], None] | None = None,
    ) -> Run:
        """The requests of ``inputs``, read as places become free; what ``generate`` and ``stream`` are made of.

        ``is_ready``: whether the next input can be read without waiting, where reading may wait.
        ``on_held_interrupt``: called in the signal handler when Ctrl-C has to wait for the end of a step.
        """
        built = self.built
        return Run(
            self._engine,
            built.tokenizer,
            inputs,
            vocab_size=built.vocab_size,
            max_model_len=built.max_model_len,
            window=WINDOW_FACTOR * built.plan.max_num_seqs,
            seed=self.config.base_seed,
            streaming=streaming,
            emulated=built.is_emulated,
            check_prompt=getattr(self.assembly.model, "check_prompt", None),
            is_ready=is_ready,
            on_held_interrupt=on_held_interrupt,
        )

    def get_tokenizer(self) -> Tokenizer:
        return self.built.tokenizer

    @property
    def times(self) -> PhaseTimes:
        """Time spent in each phase of the steps so far."""
        return self._engine.times

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix, for instance because weights changed. May be called between calls and in one.

        Requests that run go on with the same tokens, and what they computed before is not offered later. Raises
        ConfigError without a prefix cache, EngineError while two running requests share blocks.
        """
        self._engine.reset_prefix_cache()

    @property
    def prefix_cache_report(self) -> PrefixCacheReport:
        """What the prefix cache did so far, also after ``close``; all zero without one."""
        return self._engine.prefix_cache_report

    @property
    def grammar_report(self) -> GrammarReport:
        """What structured output has cost so far, also after ``close``."""
        return self._engine.grammar_report

    @property
    def draft_report(self) -> DraftReport:
        """What speculation did so far, also after ``close``; all zero without drafts."""
        return self._engine.draft_report

    def close(self) -> None:
        """Abort what runs and give memory and device back. Idempotent."""
        engine = getattr(self, "_engine", None)
        if engine is not None and not engine.lock.is_inherited:
            engine.close()
            self._close_assembly()

    def _close_assembly(self) -> None:
        close = getattr(self.assembly, "close", None)
        if close is not None:
            close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an LLM holds a device and requests that run, so it cannot be pickled or copied; make one in each process "
            "that needs it, and send prompts and results, which can be"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check(self, params: SamplingParams) -> None:
        """Raise for what no prompt can have here: token ids outside the vocabulary, a grammar without an engine for it.

        Loads the grammar engine's plugin where ``params`` ask for structured output.
        """
        params.check_vocabulary(self.built.vocab_size)
        if params.structured is not None:
            self._engine.require_grammar_engine()

    def _checked(self, params: object) -> object:
        """``params``, after a check of what holds for all prompts: what is wrong there is an error of the call."""
        listed = params if isinstance(params, (list, tuple)) else [params]
        for item in listed:
            if isinstance(item, SamplingParams):
                self.check(item)
        return params


def _in_order(done: dict[int, Output]) -> list[Output]:
    return [done[index] for index in sorted(done)]


def _chat_output(request: Request) -> ChatOutput:
    from deepinfer_core.chat.results import chat_output

    return chat_output(request)


def _chat_options(
    tools: object, tool_choice: object, thinking: object, effort: object, continue_last: object
) -> ChatOptions:
    from deepinfer_core.chat.options import ChatOptions

    return ChatOptions(
        tools=tools, tool_choice=tool_choice, thinking=thinking, effort=effort, continue_last=continue_last
    )
