"""One request on the Python side: its tokens, its text, how it ended. The scheduler's side lives in the native core.

A prompt with ``n`` samples is ``n`` requests: the first, which the caller's index names, knows the others.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from attrs import define, field

from deepinfer_core.errors import CapacityError, DeepInferError, RequestFailed
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.pipeline.draft_report import DraftCounts
from deepinfer_core.pipeline.faults import without_frames
from deepinfer_core.pipeline.sampled import BadRow
from deepinfer_core.records import RowStatus
from deepinfer_core.requests.finish_detail import FinishDetail
from deepinfer_core.requests.outputs import Completion, RequestOutput, StreamChunk
from deepinfer_core.requests.request_parts import RequestParts
from deepinfer_core.requests.times import RequestTimes
from deepinfer_core.requests.token_logprobs import TokenLogprob
from deepinfer_core.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from deepinfer_core.chat.prompt import ChatPrompt
    from deepinfer_core.structured.progress import Progress


@define(eq=False)
class Request:
    """One sample of a prompt, from its submission to its end.

    ``inbox`` belongs to the caller that submitted it: the engine appends the request whenever it has news (each step
    if ``streaming``, else only at the end).
    """

    index: int
    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int | None
    detokenizer: Detokenizer
    inbox: deque[Request]
    eos_ids: frozenset[int] = frozenset()
    streaming: bool = False
    emulated: bool = False
    """Whether an emulated backend makes the answer."""
    line: int | None = None
    chat: ChatPrompt | None = None
    sample: int = 0
    first: Request | None = None
    """The first sample of the same prompt; None: this is it."""
    others: list[Request] = field(factory=list)
    """Of the first sample: the others, in order."""
    open_samples: int = 1
    """Of the first sample: samples whose end the caller has not seen."""
    is_closed: bool = False
    """Whether the caller has seen the end."""
    uid: int = 0
    cached_tokens: int = 0
    replayed_tokens: int = 0
    token_ids: list[int] = field(factory=list)
    grammar: Progress | None = None
    """Where the answer is in its grammar; until its end."""
    end_was_early: bool = False
    """Whether it was said that the grammar ends before ``min_tokens``."""
    so_complete: bool | None = None
    logprobs: list[TokenLogprob] = field(factory=list)
    """One for each of ``token_ids`` if ``params.wants_logprobs``."""
    prompt_logprobs: tuple[float | None, ...] | None = None
    drafts: DraftCounts = field(factory=DraftCounts)
    named: RequestParts | None = None
    """The row sampler and logits filters of ``params``; None: it names none."""
    finish_reason: str = ""
    finish_detail: FinishDetail = FinishDetail.NONE
    error: DeepInferError | None = None
    asks_details: bool = field(init=False)
    """Whether an event says more about this request than its token."""
    _taken: int = 0
    _submitted_s: float = field(factory=time.perf_counter)
    _scheduled_s: float = 0.0
    _first_s: float = 0.0
    _end_s: float = 0.0

    @asks_details.default
    def _asks_details(self) -> bool:
        return self.params.wants_logprobs or self.params.prompt_logprobs

    @property
    def finished(self) -> bool:
        return bool(self.finish_reason)

    @property
    def head(self) -> Request:
        """The first sample of this prompt."""
        return self if self.first is None else self.first

    @property
    def samples(self) -> tuple[Request, ...]:
        """All samples of this prompt, in order."""
        head = self.head
        return (head, *head.others)

    def add_sample(self, other: Request) -> None:
        """``other`` is one more sample of this prompt."""
        other.first = self
        other.sample = len(self.others) + 1
        self.others.append(other)
        self.open_samples += 1

    def close(self) -> None:
        """The caller sees the end of this sample; a second call changes nothing."""
        if not self.is_closed:
            self.is_closed = True
            self.head.open_samples -= 1

    def scheduled(self) -> None:
        """A step computes its prompt; what counts is the first one."""
        if not self._scheduled_s:
            self._scheduled_s = time.perf_counter()

    def times(self) -> RequestTimes:
        """Where its time went; call it once it is finished."""
        start, first, count = self._submitted_s, self._first_s, len(self.token_ids)
        scheduled = self._scheduled_s or self.head._scheduled_s  # a further sample has its prompt from the first one
        return RequestTimes(
            queue_s=scheduled - start if scheduled else None,
            ttft_s=first - start if first else None,
            itl_s=(self._end_s - first) / (count - 1) if count > 1 else None,
            total_s=self._end_s - start,
        )

    def add(self, token: int) -> bool:
        """Append a token that does not end the answer by its id. True if its text completes a stop string."""
        if not self.token_ids:
            self._first_s = time.perf_counter()
        self.token_ids.append(token)
        return self.detokenizer.push(token)

    def add_stop_token(self, token: int, text: bytes) -> None:
        """Append the token that ends the answer by its id; ``text`` is what the caller wants to see of it."""
        if not self.token_ids:
            self._first_s = time.perf_counter()
        self.token_ids.append(token)
        self.detokenizer.finish(text)

    def finish(
        self, reason: str, detail: FinishDetail = FinishDetail.NONE, error: DeepInferError | None = None
    ) -> None:
        """The end. Nothing is added afterwards; a second call changes nothing."""
        if self.finish_reason:
            return
        self.detokenizer.finish()
        self.finish_reason = reason
        self.finish_detail = detail
        self.error = None if error is None else without_frames(error)
        self._end_s = time.perf_counter()

    def is_end_token(self, token: int) -> bool:
        params = self.params
        return token in params.stop_token_ids or (token in self.eos_ids and not params.ignore_eos)

    def chunk(self) -> StreamChunk:
        """What is new since the last call."""
        taken = self._taken
        new = tuple(self.token_ids[taken:])
        self._taken = len(self.token_ids)
        text = self.detokenizer.take()
        return StreamChunk(
            self.index,
            self.request_id,
            text,
            new,
            self.output() if self.head.open_samples == 0 else None,
            self.sample,
            self.completion() if self.finish_reason else None,
            tuple(self.logprobs[taken:]) if self.params.wants_logprobs else None,
            self.emulated,
        )

    def completion(self) -> Completion:
        """The result of this sample; call it once it is finished."""
        return Completion(
            index=self.sample,
            text=self.detokenizer.text,
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason,
            finish_detail=self.finish_detail,
            seed=self.seed,
            error=self.error,
            so_complete=self.so_complete,
            logprobs=tuple(self.logprobs) if self.params.wants_logprobs else None,
            verified_drafts=tuple(self.drafts.verified),
            accepted_drafts=tuple(self.drafts.accepted),
            times=self.times() if self.uid else None,
        )

    def output(self) -> RequestOutput:
        """The result of the prompt; call it once all samples are finished."""
        head, samples = self.head, self.samples
        start = head._submitted_s
        return RequestOutput(
            index=head.index,
            request_id=head.request_id,
            prompt=head.prompt,
            prompt_token_ids=head.prompt_token_ids,
            outputs=tuple(r.completion() for r in samples),
            cached_tokens=head.cached_tokens,
            replayed_tokens=head.replayed_tokens,
            total_s=max(r._end_s for r in samples) - start,
            prompt_logprobs=head.prompt_logprobs,
            emulated=head.emulated,
        )


def explain_too_long(core_config: Any, request: Request) -> CapacityError:
    """The error of a request that a core of this configuration refused."""
    return too_long(
        request,
        block_size=core_config.block_size,
        usable_blocks=core_config.num_blocks - 1,
        prompt_limit=core_config.max_model_len - 1,
    )


def too_long(request: Request, *, block_size: int, usable_blocks: int, prompt_limit: int) -> CapacityError:
    """Why the scheduler refused ``request``: needed against available (``spec/engine.md`` 2.3.2)."""
    tokens = len(request.prompt_token_ids) + len(request.token_ids)
    blocks = -(-tokens // block_size)
    return CapacityError(
        f"request {request.request_id}: {tokens} tokens need {blocks} blocks of {block_size}, "
        f"the pool has {usable_blocks}",
        reason=f"room for {usable_blocks * block_size} tokens in all; prompts may have {prompt_limit}",
        remedy="raise --kv-memory, or shorten the prompt or max_tokens",
        details={
            "tokens": tokens,
            "blocks_needed": blocks,
            "blocks_available": usable_blocks,
            "block_size": block_size,
        },
    )


def failed_row(request: Request, row: BadRow) -> RequestFailed:
    """The error for a row that the sampler could not sample, or for which it gave no token of the vocabulary."""
    if row.error is not None:
        return RequestFailed(
            f"request {request.request_id}: {row.error.what} (token {len(request.token_ids) + 1})",
            reason=row.error.reason or "only this request ends; the others go on",
            remedy=row.error.remedy,
            details={**row.error.details, "output_index": len(request.token_ids) + 1},
        )
    who = f"sampler.sample{f' of {row.owner}' if row.owner else ''}"
    remedy = f"report it to the authors of {row.owner or 'the sampler'}, or choose another --sampler"
    if row.status == RowStatus.NAN_LOGITS:
        what = "the logits are not finite numbers"
        remedy = "verify the checkpoint, or try --numeric-mode exact"
    elif row.status == RowStatus.NO_ALLOWED_TOKEN:
        what = f"{who} found no token that is allowed"
        remedy = "relax the sampling parameters that exclude tokens, or choose another --sampler"
    elif row.token is not None:
        what = f"{who} chose the id {row.token}, which is outside 0 to {row.vocab_size - 1}"
    else:
        what = f"{who} gave no token for this request"
    details: dict[str, object] = {"op": "sampler.sample", "row_status": row.status}
    if row.owner:
        details["plugin"] = row.owner
    if row.token is not None:
        details["token"] = row.token
    return RequestFailed(
        f"request {request.request_id}: {what} (token {len(request.token_ids) + 1})",
        reason="only this request ends; the others go on",
        remedy=remedy,
        details={**details, "output_index": len(request.token_ids) + 1},
    )
