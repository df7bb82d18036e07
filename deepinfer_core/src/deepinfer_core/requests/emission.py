"""Events of the native core to requests: text, stop strings, reasons (``spec/engine.md`` 6.6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress

from deepinfer_core.errors import DeepInferError
from deepinfer_core.pipeline.sampled import NO_ROWS, NO_TOKEN, BadRow
from deepinfer_core.records import EventBatch, EventFlags, EventKind, FinishReason, RowStatus
from deepinfer_core.requests.finish_detail import FinishDetail
from deepinfer_core.requests.request import Request, failed_row
from deepinfer_core.requests.token_logprobs import EventLogprobs
from deepinfer_core.structured.failures import Failure
from deepinfer_core.text.tokenizer import Tokenizer

TOKEN, STOP = int(EventKind.TOKEN), int(FinishReason.STOP)
LAST, FROM_DRAFT = int(EventFlags.LAST), int(EventFlags.FROM_DRAFT)


class Emitter:
    """Brings the news of a step to the requests in ``live``, and takes those that end out of it.

    :param finish: ``Core.finish``: ends a request whose text holds a stop string.
    :param explain_too_long: The error of a request that the scheduler refused.
    :param ended: Called with each request that has ended.
    :param with_drafts: Whether tokens may be accepted drafts, which are counted then.
    :param with_sum_smaller: Whether the sampler computes the audit statistic of 1.2.
    """

    def __init__(
        self,
        live: MutableMapping[int, Request],
        tokenizer: Tokenizer,
        finish: Callable[[int, FinishReason, int], object],
        explain_too_long: Callable[[Request], DeepInferError],
        ended: Callable[[Request], object],
        *,
        with_drafts: bool = False,
        with_sum_smaller: bool = False,
    ) -> None:
        self._live = live
        self._tokenizer = tokenizer
        self._finish = finish
        self._explain_too_long = explain_too_long
        self._tell_ended = ended
        self.listeners: list[Callable[[Request], object]] = []
        """Called with each request that has ended, where somebody observes."""
        self._with_drafts = with_drafts
        self._with_sum_smaller = with_sum_smaller

    def emit(self, events: EventBatch, bad_rows: Mapping[int, BadRow] = NO_ROWS) -> None:
        """``bad_rows``: uid -> why the row has no token."""
        if events.seq_uid is None or not len(events.seq_uid):
            return
        find, take, with_drafts = self._live.get, self._token, self._with_drafts
        logprobs = EventLogprobs(events, with_sum_smaller=self._with_sum_smaller)
        drafted = _drafted(events) if with_drafts else {}
        columns = (events.seq_uid, events.kind, events.flags, events.token_id, events.finish_reason)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for at, (uid, kind, flags, token, reason) in enumerate(rows):
            request = find(uid)
            if request is None:
                continue  # it ended on this side: a stop string, an abort
            if kind == TOKEN:
                if request.asks_details:
                    _keep_logprobs(request, logprobs, at, token, flags)
                if with_drafts:
                    verified = drafted.pop(uid, 0)  # with the step's first token: it may be the last
                    # The first token has none: behind a fork its step looks at a slot without drafts.
                    if request.token_ids and (verified or flags & FROM_DRAFT):
                        request.drafts.add(verified, is_draft=flags & FROM_DRAFT != 0)
                take(request, token, reason if flags & LAST else None)
            elif flags & LAST:
                self._ended(request, reason, bad_rows.get(uid) or BadRow(NO_TOKEN))

    def end(
        self,
        request: Request,
        reason: str,
        detail: FinishDetail = FinishDetail.NONE,
        error: DeepInferError | None = None,
    ) -> None:
        """Finish a request and hand it to whoever waits for it."""
        self._live.pop(request.uid, None)
        request.finish(reason, detail, error)
        self._tell_ended(request)
        for tell in self.listeners:
            tell(request)
        request.inbox.append(request)

    def end_in_grammar(self, request: Request, failure: Failure) -> None:
        """Its grammar cannot go on, while a row of it is in flight: what comes of that is dropped."""
        self._end_in_core(request, FinishReason.GRAMMAR)
        self.end(request, "grammar", failure.detail, failure.error)

    def _end_in_core(self, request: Request, reason: FinishReason) -> None:
        """Behind its last token. The core may have ended it for another reason already: at a later token of the same
        step, or without having said so yet."""
        from deepinfer_native.errors import NotFoundError

        with suppress(NotFoundError):
            self._finish(request.uid, reason, len(request.token_ids))

    def _token(self, request: Request, token: int, reason: int | None) -> None:
        """``reason``: why the core ends the request with this token; none if it goes on."""
        if reason == STOP:
            shown = self._tokenizer.spelling(token) if request.params.include_stop else b""
            request.add_stop_token(token, shown)
            self.end(request, "stop", _stop_detail(request, token))
        elif reason is None and request.grammar is not None and token in request.eos_ids:
            # Within the first min_tokens, where the core goes on: the grammar had nothing but an end to offer.
            request.add_stop_token(token, b"")
            self._end_in_core(request, FinishReason.STOP)
            self.end(request, "stop", FinishDetail.EOS)
        elif request.add(token):
            # A stop string wins over a length limit that falls on the same token.
            if reason is None:
                self._end_in_core(request, FinishReason.STOP)
            self.end(request, "stop", FinishDetail.STOP_STRING)
        elif reason is not None:
            full = len(request.token_ids) >= request.params.max_tokens
            detail = FinishDetail.MAX_TOKENS if full else FinishDetail.MODEL_LENGTH
            self.end(request, FinishReason(reason).name.lower(), detail)
        elif request.streaming:
            request.inbox.append(request)

    def _ended(self, request: Request, reason: int, row: BadRow) -> None:
        name = FinishReason(reason).name.lower()
        if reason == FinishReason.TOO_LONG:
            self.end(request, name, error=self._explain_too_long(request))
        elif row.status == RowStatus.NO_ALLOWED_TOKEN and (failure := dead_end_of(request)) is not None:
            self.end(request, "grammar", failure.detail, failure.error)
        elif reason == FinishReason.ENGINE:
            detail = FinishDetail.NAN_LOGITS if row.status == RowStatus.NAN_LOGITS else FinishDetail.NONE
            self.end(request, name, detail, failed_row(request, row))
        else:
            self.end(request, name)


def dead_end_of(request: Request) -> Failure | None:
    """The failure of a request without an allowed token, if its grammar had a part in it."""
    return None if request.grammar is None else request.grammar.dead_end(request.token_ids)


def _stop_detail(request: Request, token: int) -> FinishDetail:
    return FinishDetail.STOP_TOKEN if token in request.params.stop_token_ids else FinishDetail.EOS


def _keep_logprobs(request: Request, logprobs: EventLogprobs, at: int, token: int, flags: int) -> None:
    params = request.params
    if params.prompt_logprobs and not request.token_ids:
        request.prompt_logprobs = logprobs.prompt(at)
    if params.wants_logprobs:
        is_draft = flags & FROM_DRAFT != 0
        request.logprobs.append(logprobs.token(at, token, is_draft=is_draft, most=params.top_logprobs))


def _drafted(events: EventBatch) -> dict[int, int]:
    """uid -> drafts that the step verified; they stand with the last of its tokens."""
    at = events.drafted.nonzero()[0]
    return dict(zip(events.seq_uid[at].tolist(), events.drafted[at].tolist(), strict=True))
