"""Decode and pressure (``spec/engine.md`` 2.4, 2.5): grow, hold, then preempt."""

from __future__ import annotations

from reference.records import PROMPT, Phase, Reason, Request, Step


def reserve(m) -> int:
    """Running requests that cross a block boundary within two steps: blocks that admission leaves free."""
    c = m.settings
    n = 0
    if c.engine_type == PROMPT:
        return 0  # nothing grows there
    for s in m.running:
        used = s.len if s.awaits_first else s.cached + s.inflight * c.q
        n += len(s.blocks) * c.block_size - used < 2 * c.q
    return n


def growth(m, s: Request) -> int:
    """Blocks that the next step of ``s`` needs beyond those it has."""
    end = s.cached + (s.inflight + 1) * m.settings.q
    return max(0, m.settings.blocks(end) - len(s.blocks))


def is_certain_to_finish(m, s: Request) -> bool:
    """Each launched step adds a token at least (5.6)."""
    f = s.inflight
    return f > 0 and (s.n_output + f >= s.max_tokens or s.len + f > m.settings.max_model_len)


def is_candidate(m, s: Request) -> bool:
    """Its next token comes from the host, or from the step just before."""
    if s.awaits_first or is_certain_to_finish(m, s):
        return False
    return s.inflight == 0 or s.last_step == m.launched


def preempt(m, s: Request, out) -> None:
    m.count["preemptions"] += 1
    if m.settings.stop_preempted:
        m.end(s, Reason.NO_RESOURCE)
        return
    m.running.remove(s)
    m.release(s)
    s.cached = s.store_from = s.swa_valid_start = 0
    s.generation += 1
    s.inflight = 0
    s.holds = 0
    s.has_drafts = s.awaits_first = False
    s.queue_class = 1
    m.set_phase(s, Phase.WAITING)
    m.queue.append(s)
    out.preempted_uid.append(s.uid)


def on_their_way(m) -> int:
    """Blocks that come back without a decision: limbo, and what a request that certainly ends has for itself."""
    ending = [s for s in m.running if is_certain_to_finish(m, s)]
    return len(m.main.limbo) + sum(m.main.ref[b] == 1 for s in ending for b in s.blocks)


def relieve(m, candidates: list[Request], out) -> None:
    """Preempt, largest output first, until what is free or on its way covers the need."""
    need = sum(growth(m, s) for s in candidates)
    while candidates and need > m.main.available + on_their_way(m):
        victim = max(candidates, key=lambda s: (s.n_output, s.uid))
        need -= growth(m, victim)
        candidates.remove(victim)
        preempt(m, victim, out)


def grow_or_hold(m, candidates: list[Request], out) -> None:
    """Blocks go to those that were held, then in row order; who gets none is held, or preempted after `depth` holds."""
    by_claim = [s for s in candidates if s.holds] + [s for s in candidates if not s.holds]
    for s in by_claim:
        n = growth(m, s)
        if 0 < n <= m.main.available:
            before = len(s.blocks)
            s.blocks += m.main.take(n)
            if s.last_step:
                out.note_blocks(s, before)
    for s in list(candidates):
        if growth(m, s) == 0:
            continue
        candidates.remove(s)
        if s.holds < m.settings.depth:
            out.held_uid.append(s.uid)
        else:
            preempt(m, s, out)


def decode_pass(m, step: Step, out) -> None:
    c = m.settings
    candidates = [s for s in m.running if is_candidate(m, s)]
    if any(growth(m, s) for s in candidates):
        relieve(m, candidates, out)
        grow_or_hold(m, candidates, out)
    m.carry_out_forks(step, out, candidates)
    if c.row_order == "length_desc":
        candidates.sort(key=lambda s: (-s.len, s.uid))
    for s, q in zip(candidates, m.varlen.lengths(candidates), strict=True):
        s.holds = 0
        if not s.last_step:  # injected or cloned: its table is said with its first step
            out.note_blocks(s, 0)
        out.add_row(step, s, s.cached + s.inflight * c.q, q, False)
    if not candidates:
        return  # no step was made: nobody was passed over
    m.count["holds"] += len(out.held_uid)
    for s in m.running:
        if s.uid in out.held_uid:
            s.holds += 1
