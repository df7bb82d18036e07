"""Requests that move between engines (``spec/engine.md`` 1.3 rows 21 to 23, 1.4, 4.4).

A computed prompt in a PROMPT engine, and a reservation in a COMPLETION engine, are in HANDOFF: somebody outside reads
or writes their units, so nothing but the acknowledgement gives them back; an end meanwhile waits for it.
"""

from __future__ import annotations

from reference.commit import stop_reason
from reference.decode import reserve as growth_reserve
from reference.prefill import start_running
from reference.records import COMPLETION, PREFILLED, PROMPT, TOKEN, Event, Phase, Reason, Refused, Request


def require_type(m, engine_type: int) -> None:
    if m.settings.engine_type != engine_type:
        raise Refused("argument", f"an engine of type {m.settings.engine_type}")


def offer(m, s: Request, last: Event) -> None:
    """The prompt is computed: its first token says so, and its row is free for others."""
    last.kind = PREFILLED
    m.running.remove(s)
    m.rows.release(s.row_slot, s.last_step)
    s.row_slot = 0
    m.set_phase(s, Phase.HANDOFF)


def end(m, s: Request, reason: Reason) -> None:
    if s.phase == Phase.HANDOFF:
        s.ending = s.ending or reason
    else:
        m.end(s, reason)


def admit(m) -> None:
    """Injected requests take free rows, in queue order."""
    while m.queue and len(m.running) < m.settings.max_num_seqs:
        s = m.queue_head()
        m.queue.remove(s)
        s.row_slot = m.rows.take_one()
        start_running(m, s, awaits_first=False)


def put_first(s: Request, events: list[Event]) -> None:
    """The token that an injected request came with; an end may have dropped it."""
    if s.first_waits and s.n_output:
        events.append(Event(s.uid, TOKEN, 0, s.tokens[s.prompt_len], 1, s.prompt_len, 0))
    s.first_waits = False


def reserve(m, prompt, max_tokens: int, min_tokens=0, stop=(), priority=0) -> Request:
    require_type(m, COMPLETION)
    c = m.settings
    m.drain()
    blocks = c.blocks(len(prompt))
    if len(prompt) > c.prompt_limit or blocks > m.main.total:
        raise Refused("argument", "the prompt never fits")
    if blocks + growth_reserve(m) > m.main.available or not m.swa.has(1) or not m.state.has(1):
        raise Refused("capacity", "no room now")
    s = m.new_request(prompt, max_tokens, min_tokens, stop, priority)
    m.set_phase(s, Phase.HANDOFF)
    s.is_reserved = True
    s.blocks = m.main.take(blocks)
    s.swa_slot = m.swa.take_one()
    s.state_slot = m.state.take_one()
    return s


def inject(m, uid: int, token: int, drafts: list[int]) -> bool:
    """``uid``: the reservation's request; one that was used or acknowledged is stale."""
    require_type(m, COMPLETION)
    m.drain()
    s = m.requests.get(uid)
    if s is None or not s.is_reserved:
        raise Refused("stale", f"request {uid} has no reservation")
    s.is_reserved = False
    if s.ending:
        m.end(s, s.ending)
        return True
    s.cached = s.len
    s.tokens.append(token)
    s.first_waits = True
    s.drafts = list(drafts)
    s.has_drafts = 2 if drafts else False  # ids that the host knows, and nothing of them on this device
    m.count["tokens_output"] += 1
    reason = stop_reason(m, s)
    if reason:
        m.end(s, reason)
        return True
    m.tickets += 1
    s.ticket = m.tickets
    m.set_phase(s, Phase.PREFILL)
    m.queue.append(s)
    return True


def find_handed(m, uid: int) -> Request:
    m.drain()
    s = m.requests.get(uid)
    if s is None or s.phase != Phase.HANDOFF:
        raise Refused("not_found", f"request {uid} is not in a transfer")
    return s


def handoff(m, uid: int) -> dict:
    require_type(m, PROMPT)
    s = find_handed(m, uid)
    if s.last_step > m.done:
        raise Refused("order", f"step {s.last_step} must be done first")
    return {
        "block_ids": s.blocks,
        "swa_slot": s.swa_slot,
        "state_slot": s.state_slot,
        "length": s.cached,
        "drafts": s.drafts if s.has_drafts else [],
        "is_ended": bool(s.ending),
    }


def acknowledge(m, uid: int) -> bool:
    s = find_handed(m, uid)
    reason = Reason.ABORT if s.is_reserved else Reason.LENGTH
    s.is_reserved = False
    m.end(s, s.ending or reason)
    return True
