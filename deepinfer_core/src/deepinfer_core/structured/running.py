"""Requests in the scheduler that have a grammar: what each step's masks are, and when an answer is complete.

The order of a step (``spec/sampling.md`` 3.5): the step before is committed, the grammar takes its tokens, the masks
are written, the step is sampled. So only emitted tokens move a grammar on, with two steps in flight too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from time import perf_counter_ns
from typing import Any

import numpy as np

from deepinfer_core.pipeline.record import StepRecord
from deepinfer_core.pipeline.step_warnings import warn
from deepinfer_core.requests.finish_detail import FinishDetail
from deepinfer_core.requests.request import Request
from deepinfer_core.structured.failures import Failure
from deepinfer_core.structured.masks import MaskBuffers
from deepinfer_core.structured.progress import Progress

Fail = Callable[[Request, Failure], object]


class RunningGrammars:
    """Runs on the engine thread, under its lock.

    :param vocab_size: Width of the logits.
    :param allowed_vocab: Ids that may be sampled.
    """

    def __init__(self, *, num_draft: int, max_num_seqs: int, vocab_size: int, allowed_vocab: int) -> None:
        self._num_draft = num_draft
        self._sizes = (num_draft + 1, max_num_seqs, vocab_size, allowed_vocab)
        self._pad = vocab_size - 1
        self._words = -(-vocab_size // 32)
        self._masks: MaskBuffers | None = None
        self._by_uid: dict[int, Request] = {}
        self.steps = self.filled = self.fill_ns = 0

    def started(self, request: Request) -> None:
        """The core knows ``request`` by its uid."""
        if request.grammar is not None:
            self._by_uid[request.uid] = request

    def ended(self, request: Request) -> None:
        """The grammar of ``request`` is not needed any more; its answer is complete, or not."""
        progress, request.grammar = request.grammar, None
        if progress is None:
            return
        self._by_uid.pop(request.uid, None)
        if request.finish_reason in ("stop", "length"):
            is_cut = request.finish_detail is FinishDetail.STOP_STRING  # the text ends somewhere inside a token
            request.so_complete = not is_cut and progress.is_complete(request.token_ids, self._words)

    def committed(self, record: StepRecord, draft_ids: Any) -> None:
        """``draft_ids``: int32 ``[N, K]`` on the host, which the next step of each request verifies; None: pads."""
        if not self._by_uid or not self._num_draft:
            return
        for row, uid in enumerate(record.uids):
            request = self._by_uid.get(uid)
            if request is not None and request.grammar is not None:
                given = [] if draft_ids is None else draft_ids[row].tolist()
                # What is no token becomes a pad draft, as in the core (spec/engine.md 5.8).
                drafts = [draft if 0 <= draft <= self._pad else self._pad for draft in given]
                request.grammar.drafts = drafts or [self._pad] * self._num_draft

    def mask(self, record: StepRecord, rows: Any, fail: Fail) -> Any:
        """The SamplerInputs ``rows`` with the masks of a step whose predecessor is committed.

        ``rows`` itself is the core's and stays as it is. ``fail`` ends a request that cannot go on.
        """
        if not self._by_uid:
            return rows
        start = perf_counter_ns()
        if self._masks is None:
            self._masks = MaskBuffers(*self._sizes)
        masks = self._masks
        masks.begin()
        step = StepRows(record, rows)
        failed: list[tuple[Request, Failure]] = []
        overruled: set[int] = set()
        for index, uid in enumerate(record.uids):
            request = self._by_uid.get(uid)
            if request is None or request.grammar is None or not step.is_sampled(index):
                continue
            failure = self._fill(request.grammar, request, index, step, overruled)
            if failure is not None:
                masks.drop(index)
                failed.append((request, failure))
        for request, failure in failed:
            fail(request, failure)
        arrays = masks.arrays(record.num_reqs)
        if arrays is not None:
            rows = copy.copy(rows)
            rows.grammar_mask, rows.grammar_rows = arrays
            if overruled:
                rows.eos_suppress = step.without(overruled)
            self.steps += 1
            self.filled += masks.count
        self.fill_ns += perf_counter_ns() - start
        return rows

    def _fill(
        self, progress: Progress, request: Request, index: int, step: StepRows, overruled: set[int]
    ) -> Failure | None:
        if self._masks is None:
            return None
        failure = progress.advance(request.token_ids)
        if failure is not None:
            return failure
        first, count = step.rows_of(index)
        failure, wins = progress.fill(self._masks, index, count, request.token_ids, lambda j: step.excluded(first + j))
        if wins and not request.end_was_early:
            request.end_was_early = True
            warn(
                f"W_GRAMMAR_END: request {request.request_id}: its grammar allows nothing but an end within the first "
                f"min_tokens ({request.params.min_tokens}) tokens; it ends there"
            )
        overruled.update(first + j for j in wins)
        return failure


class StepRows:
    """Which rows of the logits belong to which request of a step, and what the step excludes in each."""

    def __init__(self, record: StepRecord, rows: Any) -> None:
        self._is_last = record.outputs.is_last_chunk.tolist() if record.is_prefill else None
        self._first = None if rows.first_row is None else rows.first_row.tolist()
        self._count = None if rows.row_count is None else rows.row_count.tolist()
        self._suppress = rows.eos_suppress
        self._by_row: dict[int, set[int]] | None = None

    def is_sampled(self, index: int) -> bool:
        """Whether the token of the request's last row counts: not within a prompt."""
        return self._is_last is None or bool(self._is_last[index])

    def rows_of(self, index: int) -> tuple[int, int]:
        """First row and number of rows."""
        if self._first is None or self._count is None:
            return index, 1
        return self._first[index], self._count[index]

    def excluded(self, row: int) -> Collection[int]:
        if self._by_row is None:
            self._by_row = {}
            for at, token in [] if self._suppress is None else self._suppress.tolist():
                self._by_row.setdefault(at, set()).add(token)
        return self._by_row.get(row, ())

    def without(self, rows: set[int]) -> Any:
        """What is excluded in other rows than ``rows``; None if nothing is."""
        keep = [pair for pair in self._suppress.tolist() if pair[0] not in rows]
        return np.array(keep, dtype=np.int32) if keep else None
