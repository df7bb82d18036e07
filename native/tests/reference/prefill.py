"""Admission (``spec/engine.md`` 2.3): strict order, no skipping, blocks of the whole prompt, all or nothing."""

from __future__ import annotations

from reference.decode import reserve
from reference.prefix import Hit
from reference.records import COMPLETION, NORMAL, POOL_STATE, POOL_SWA, PROMPT, Phase, Reason, Request, Step


def is_new(s: Request) -> bool:
    """Holds nothing yet."""
    return s.row_slot == 0


def is_too_long(m, s: Request) -> bool:
    return s.len > m.settings.prompt_limit or m.settings.blocks(s.len) > m.main.total


def is_above_watermark(m) -> bool:
    return m.main.held > m.settings.prefill_watermark * m.main.total


def has_resources(m, s: Request, hit: Hit, spare: int) -> bool:
    """The blocks of a hit need not be taken; those that nobody holds can then not be taken for others."""
    blocks = m.settings.blocks(s.len) + spare - len(hit.blocks)
    return blocks <= m.main.available - m.prefix.idle(hit) and m.swa.has(1) and m.state.has(1)


def wants_prefill(m) -> bool:
    """Below the watermark with a head that could go now; continuations and refusals are always wanted."""
    head = m.queue_head()
    if head is None or m.settings.engine_type == COMPLETION:
        return False
    if not is_new(head) or is_too_long(m, head):
        return True
    has_row = m.admitted < m.settings.max_num_seqs
    return not is_above_watermark(m) and has_row and has_resources(m, head, m.prefix.match(head), reserve(m))


def drop_too_long(m) -> None:
    if m.settings.engine_type == COMPLETION:
        return
    while (head := m.queue_head()) and is_new(head) and is_too_long(m, head):
        m.end(head, Reason.TOO_LONG)


def chunk_of(m, s: Request, start: int, room: int) -> int:
    """Tokens of ``s`` from position ``start`` that fit (rules 6 to 9); 0 = none."""
    c = m.settings
    rest = s.len - start
    q = min(rest, room, c.chunk_limit)
    if q == rest:
        return q
    if not c.chunked_prefill or q < c.min_chunk:
        return 0
    aligned = q // c.chunk_align * c.chunk_align
    return aligned if aligned >= c.min_chunk else q


def admit(m, s: Request, hit: Hit, out) -> None:
    m.prefix.hold(s, hit)
    s.blocks += m.main.take(m.settings.blocks(s.len) - len(s.blocks))
    s.swa_slot = m.swa.take_one()
    s.state_slot = m.state.take_one()
    s.row_slot = m.rows.take_one()
    out.note_blocks(s, 0)
    if s.state_slot:
        out.zero_slots.append([POOL_STATE, s.state_slot])
    if s.swa_slot and m.settings.zero_swa_on_alloc:
        out.zero_slots.append([POOL_SWA, s.swa_slot])


def start_running(m, s: Request, awaits_first: bool = True) -> None:
    if m.settings.engine_type != PROMPT:
        s.draft_slot = m.draft.take_one()
    m.running.append(s)
    s.awaits_first = awaits_first
    if awaits_first:
        s.has_drafts = False
    s.holds = 0
    m.set_phase(s, Phase.RUNNING)


def prefill_pass(m, step: Step, out) -> None:
    c = m.settings
    spare = reserve(m)
    may_admit = not is_above_watermark(m)  # of the step's start: what it admits does not count against it
    sum_k = 0
    # Whoever had its turn has left the queue, and a prompt that ends here may have sent its forks to it.
    while (s := m.queue_head()) and len(step.rows) < c.max_num_seqs:
        new = is_new(s)
        if new and is_too_long(m, s):
            m.end(s, Reason.TOO_LONG)
            continue
        if new and (not may_admit or m.admitted >= c.max_num_seqs):
            break
        if sum_k + s.len > c.sum_k_limit:
            break
        hit = m.prefix.match(s) if new else Hit(start=s.cached)
        q = chunk_of(m, s, hit.start, c.max_num_batched_tokens - step.tokens)
        if q == 0:
            if not step.rows:
                raise AssertionError(f"request {s.uid} gets no token of an empty step")
            break
        if new:
            if not has_resources(m, s, hit, spare):
                break
            admit(m, s, hit, out)
        is_last = s.cached + q == s.len
        m.queue.remove(s)
        if is_last:
            start_running(m, s)
        else:
            m.set_phase(s, Phase.PREFILL)
        out.add_row(step, s, s.cached, q, is_last)
        out.note_prefix(s, new)
        sum_k += s.len
        is_normal = c.engine_type == NORMAL
        if not is_last and is_normal:
            break  # an engine of this type stops after the first chunked prompt
        if is_normal and len(s.blocks) * c.block_size - s.len < 2 * c.q:
            spare += 1
