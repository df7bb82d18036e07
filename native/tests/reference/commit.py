"""The end of a step (``spec/engine.md`` 1.2, 1.3): tokens, stop checks, events."""

from __future__ import annotations

from reference import fork
from reference.records import (
    FROM_DRAFT,
    KIND_DECODE,
    KIND_PREFILL,
    LAST,
    PROMPT,
    TOKEN,
    Drafts,
    Event,
    Reason,
    Request,
    Row,
    Step,
)


def is_live(r: Row) -> bool:
    """Neither ended nor computed again since the step was made."""
    return r.request.generation == r.generation and not r.request.is_terminal


def wants_token(step: Step, r: Row) -> bool:
    return is_live(r) and (step.kind == KIND_DECODE or r.is_last_chunk)


def stop_reason(m, s: Request) -> Reason:
    """After each token: stop ids, then the model's length, then ``max_tokens``."""
    if s.n_output > s.min_tokens and s.tokens[-1] in s.stop:
        return Reason.STOP
    if s.len > m.settings.max_model_len or s.n_output >= s.max_tokens:
        return Reason.LENGTH
    return Reason.NONE


def append_tokens(
    m, step: Step, r: Row, tokens: list[int], is_ok: bool, drafts: Drafts | None, events: list[Event]
) -> None:
    """``tokens``: the accepted drafts and the sampled one, which is none where the row failed. Those behind a stop are
    dropped.

    ``drafts``: those for the next step. What is no token is verified as the last one of the vocabulary (5.8).
    """
    s = r.request
    reason = Reason.NONE
    if not is_ok and len(tokens) == 1:
        m.prefix.withdraw(s)
        m.end(s, Reason.ENGINE)
        return
    m.put_first(s, events)
    for j, token in enumerate(tokens if is_ok else tokens[:-1]):
        s.tokens.append(token)
        flags = FROM_DRAFT if j < len(tokens) - 1 else 0
        events.append(Event(s.uid, TOKEN, flags, token, s.n_output, s.prompt_len, 0))
        m.count["tokens_output"] += 1
        s.cached += step.kind == KIND_DECODE
        reason = stop_reason(m, s)
        if reason:
            break
    last = events[-1]
    last.drafted = r.q - 1 if step.kind == KIND_DECODE else 0
    last.accepted = len(tokens) - 1
    m.count["tokens_accepted"] += len(tokens) - 1
    if not is_ok and not reason:
        m.prefix.withdraw(s)
        m.end(s, Reason.ENGINE)
        return
    m.prefix.offer(s)  # before an end gives the blocks back
    if reason:
        last.flags |= LAST
        last.finish_reason = reason
        m.end(s, reason, has_event=False)
    else:
        s.has_drafts = drafts is not None and m.settings.num_draft > 0
        if s.has_drafts:
            pad = m.settings.vocab_size - 1
            s.drafts = [draft if 0 <= draft <= pad else pad for draft in drafts.ids]
        m.varlen.keep(s, drafts)
        if m.settings.engine_type == PROMPT:
            m.hand_over(s, last)


def commit_row(m, step: Step, r: Row, tokens: list[int], is_ok: bool, drafts: Drafts | None, events: list) -> None:
    s = r.request
    if not is_live(r):
        m.count["overrun_rows" if s.is_terminal else "stale_rows"] += 1
        s.inflight_all -= 1
        m.settle(s)
        return
    s.inflight -= 1
    s.inflight_all -= 1
    if step.kind == KIND_PREFILL:
        s.cached = r.start + r.q
        if r.is_last_chunk:
            s.awaits_first = False
            fork.ready(m, s)
        else:
            s.queue_class = 0
            m.queue.append(s)
            m.prefix.offer(s)
    if step.kind == KIND_PREFILL and not r.is_last_chunk:
        return
    append_tokens(m, step, r, tokens, is_ok, drafts, events)
