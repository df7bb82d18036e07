"""One call of the user: a stream of prompts through the engine, a bounded number of them at a time."""

from __future__ import annotations

import sys
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, Self, TypeVar

from deepinfer_core.engine import Engine
from deepinfer_core.errors import DeepInferError, EngineError, InvalidParameter, InvalidPrompt
from deepinfer_core.interrupts import HeldInterrupt, raise_swallowed
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.requests.outputs import StreamChunk
from deepinfer_core.requests.prompts import PromptInput, encode_prompt
from deepinfer_core.requests.request import Request
from deepinfer_core.requests.seeds import request_seed, sample_seed
from deepinfer_core.text.detokenizer import Detokenizer, incomplete_tail
from deepinfer_core.text.tokenizer import Tokenizer


class Run:
    """Feeds prompts to the engine and yields requests that have news, until all have ended.

    A prompt with several samples is as many requests, each with its own news. Prompts are read and encoded only when
    ``window`` places, one for each sample, have room for them, so memory does not grow with their number. Requests
    that cannot run come back finished, with their error. One thread iterates; any may cancel and stop meanwhile.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        inputs: Iterator[PromptInput],
        *,
        vocab_size: int,
        max_model_len: int,
        window: int,
        seed: int | None,
        streaming: bool,
        emulated: bool = False,
        check_prompt: Callable[[Sequence[int]], object] | None = None,
        is_ready: Callable[[], bool] | None = None,
        on_held_interrupt: Callable[[], None] | None = None,
    ) -> None:
        """``seed``: base of the seeds of requests that bring none; None draws random ones.

        ``emulated``: whether an emulated backend makes the answers.
        ``check_prompt``: the model's own check of prompt ids; it raises for what the model cannot read.
        ``is_ready``: whether the next prompt can be read without waiting; asked while requests run.
        ``on_held_interrupt``: called in the signal handler when Ctrl-C has to wait for the end of a step.
        """
        self._engine = engine
        self._tokenizer = tokenizer
        self._inputs: Iterator[PromptInput] | None = inputs
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._window = window
        self._seed = seed
        self._streaming = streaming
        self._emulated = emulated
        self._check_prompt = check_prompt
        self._is_ready = is_ready
        self._on_held_interrupt = on_held_interrupt
        self._inbox: deque[Request] = deque()
        self._live: dict[int, Request] = {}
        """Index of the prompt -> its first sample, until the caller has seen the end of all."""
        self._places = 0
        """Samples whose end the caller has not seen."""
        self._waiting: PromptInput | None = None
        """A prompt that was read, and has more samples than there were places."""
        self._cancelled: set[int] = set()
        self._count = 0
        self._stopped = False
        self._books = threading.RLock()
        """Of what is above; nobody calls the engine with it."""

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        """The next request with news; KeyboardInterrupt rises only between steps."""
        while True:
            if not self._inbox:
                self._feed()
            with self._books:
                request = self._inbox.popleft() if self._inbox else None
                if request is not None and request.is_closed:
                    continue  # its end was handed out already, with the news of an earlier step
                if request is not None and request.finished:
                    self._close(request)
            if request is not None:
                return request
            if not self._live:
                raise StopIteration
            raise_swallowed()
            with HeldInterrupt(self._on_held_interrupt) as held:
                self._engine.step()
                if held.came:  # what is on its way is kept, as when each step is committed at once
                    self._engine.flush()

    def _close(self, request: Request) -> None:
        """The caller gets to see the end of ``request``."""
        request.close()
        if not self._stopped:
            self._places -= 1
            if not request.head.open_samples:
                self._live.pop(request.index, None)
                self._cancelled.discard(request.index)

    def start(self) -> list[Request]:
        """Queue as many prompts as there are places for; those that have not ended (their first sample each).

        For whoever calls ``Engine.step`` himself from here on, to measure steps, and ends with :meth:`stop`.
        """
        self._feed()
        return list(self._live.values())

    def cancel(self, index: int) -> None:
        """End prompt ``index`` with reason ``abort``, now or when its turn comes. No effect once it has ended."""
        with self._books:
            request = self._live.get(index)
            if request is not None or index >= self._count:
                self._cancelled.add(index)  # where it is about to be queued, too
        if request is not None:
            self._engine.abort(request.samples)

    def stop(self) -> list[Request]:
        """Abort what runs, read no more prompts; the prompts that were unfinished (their first sample each).

        All of their samples have ended, and keep what they have.
        """
        with HeldInterrupt():
            with self._books:
                self._stopped = True
                self._inputs = self._waiting = None
                unfinished = list(self._live.values())
                self._live.clear()
                self._places = 0
            self._engine.abort([sample for request in unfinished for sample in request.samples])
            self._inbox.clear()
        return unfinished

    @property
    def count(self) -> int:
        """Prompts read so far."""
        return self._count

    def _feed(self) -> None:
        while (inputs := self._inputs) is not None and self._places < self._window:
            item = self._waiting
            if item is None:
                if self._live and self._is_ready is not None and not self._is_ready():
                    return
                item = self._waiting = next(inputs, None)
                if item is None:
                    self._inputs = None
                    return
            if self._places and self._places + item.params.n > self._window:
                return
            with HeldInterrupt():
                self._waiting = None
                self._admit(item)

    def _admit(self, item: PromptInput) -> None:
        index = self._count
        ids: tuple[int, ...] = ()
        error = item.error
        if error is None and item.prompt is not None and index not in self._cancelled:
            try:
                ids = self._checked_ids(item.prompt, item.params)
            except DeepInferError as err:
                error = err
        request = self._request(index, item, ids)
        for _ in range(1, item.params.n):
            request.add_sample(self._request(index, item, ids, len(request.samples), request.seed))
        with self._books:
            if self._stopped:  # while the prompt was read: nobody waits for it
                return
            self._count += 1
            self._live[index] = request
            self._places += item.params.n
        if error is not None:
            over = isinstance(error, InvalidPrompt) and "limit" in error.details
            self._end(request, "too_long" if over else "input", error)
        elif index in self._cancelled:
            self._end(request, "abort")
        else:
            try:
                self._engine.submit(request)
            except InvalidParameter as err:
                self._end(request, "input", err)
            if self._stopped or index in self._cancelled:  # before the engine knew it
                self._engine.abort(request.samples)

    def _end(self, request: Request, reason: str, error: DeepInferError | None = None) -> None:
        for sample in request.samples:
            sample.finish(reason, error=error)
            self._inbox.append(sample)

    def _checked_ids(self, prompt: str | tuple[object, ...], params: SamplingParams) -> tuple[int, ...]:
        params.check_vocabulary(self._vocab_size)
        if params.structured is not None:
            self._engine.require_grammar_engine()
        self._engine.check_params(params)
        ids = encode_prompt(prompt, self._tokenizer, vocab_size=self._vocab_size, max_model_len=self._max_model_len)
        if self._check_prompt is not None:
            try:
                self._check_prompt(ids)
            except DeepInferError:
                raise
            except Exception as err:  # the plugin boundary: only this prompt fails
                raise EngineError(
                    "model.check_prompt failed",
                    reason=f"{type(err).__name__}: {err}",
                    details={"op": "model.check_prompt"},
                ) from err
        return ids

    def _request(
        self, index: int, item: PromptInput, ids: tuple[int, ...], sample: int = 0, seed: int | None = None
    ) -> Request:
        """``seed``: of the first sample, for the others."""
        params = item.params
        if not sample:
            seed = params.seed
            if seed is None and ids:
                seed = request_seed(self._seed, index)
        table = self._tokenizer.token_bytes if item.chat is None else item.chat.token_bytes
        tail = b""
        if not isinstance(item.prompt, str):
            # Four tokens are enough: the bytes of an unfinished character are at most three.
            tail = incomplete_tail(b"".join(table[i] for i in ids[-4:] if i < len(table)))
        return Request(
            index=index,
            request_id=str(index) if item.request_id is None else item.request_id,
            prompt=item.prompt if isinstance(item.prompt, str) else None,
            prompt_token_ids=ids,
            params=params,
            seed=None if seed is None else sample_seed(seed, sample),
            detokenizer=Detokenizer(
                table,
                params.stop,
                min_tokens=params.min_tokens,
                include_stop=params.include_stop,
                stops_between=item.stops_between,
                prompt_tail=tail,
            ),
            inbox=self._inbox,
            eos_ids=self._tokenizer.eos_ids,
            streaming=self._streaming,
            emulated=self._emulated,
            line=item.line,
            chat=item.chat,
        )


Piece = TypeVar("Piece")


class RunIterator(Iterator[Piece]):
    """Pieces of all prompts of a call, as they come. Close it to abort what still runs.

    Threads may take pieces in turn, and another one may cancel and close meanwhile.
    """

    def __init__(self, run: Run) -> None:
        self._run: Run | None = run
        self._turn = threading.RLock()

    @abstractmethod
    def _piece(self, request: Request) -> Piece | None:
        """What is new of ``request``; None: nothing that the caller wants to see."""

    def __next__(self) -> Piece:
        with self._turn:
            return self._next()

    def _next(self) -> Piece:
        run = self._run
        if run is None:
            raise StopIteration
        try:
            for request in run:
                piece = self._piece(request)
                if piece is not None:
                    return piece
        except BaseException:
            self.close()
            raise
        self._run = None
        raise StopIteration

    def cancel(self, index: int) -> None:
        """Abort the prompt at position ``index``; the others go on."""
        run = self._run
        if run is not None:
            run.cancel(index)

    def close(self) -> None:
        """Abort what still runs. Idempotent."""
        run, self._run = self._run, None
        if run is not None:
            run.stop()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a stream belongs to an engine, so it cannot be pickled or copied; send what it gives")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing():  # then the engine goes as a whole
            self.close()


class Stream(RunIterator[StreamChunk]):
    """Chunks of all prompts of a call, as they come. Close it to abort what still runs."""

    def _piece(self, request: Request) -> StreamChunk | None:
        chunk = request.chunk()
        return chunk if chunk.text or chunk.token_ids or chunk.completion is not None else None
