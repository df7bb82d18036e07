"""Forks (``spec/engine.md`` 2.11): a child clones its parent's caches in the next decode step, or is computed again.

A child waits, holding nothing, until its parent's prompt is computed. Then the decode call decides once: the clone,
where units and rings allow it, or the admission queue, in front of requests that never ran.
"""

from __future__ import annotations

from reference.prefill import start_running
from reference.records import FLAG_FORKS, NORMAL, POOL_STATE, POOL_SWA, Phase, Refused, Request, Step


def fork(m, parent_uid: int, max_tokens: int = 0, at_prompt: bool = False) -> int:
    m.drain()
    if m.settings.engine_type != NORMAL:
        raise Refused("argument", "only an engine that runs prompts and decodes can fork")
    p = m.requests.get(parent_uid)
    if p is None or p.is_terminal:
        raise Refused("not_found", f"request {parent_uid}")
    n = p.prompt_len if at_prompt else p.len
    n_output = n - p.prompt_len
    left = max_tokens or p.max_tokens - n_output
    s = m.new_request(p.tokens[:n], left, max(0, p.min_tokens - n_output), p.stop, p.priority, p.replay_mode)
    s.keep_from = p.keep_from  # of the prompt that was computed, however many tokens the child starts with
    s.prefix_lookup = p.prefix_lookup
    s.parent = p.uid
    s.was_forked = True
    m.tickets += 1
    s.ticket = m.tickets
    m.set_phase(s, Phase.WAITING)
    m.forks.append(s)
    if p.phase == Phase.RUNNING and not p.awaits_first:
        ready(m, p)
    return s.uid


def ready(m, p: Request) -> None:
    """The prompt of p is computed: the next decode call decides about its children."""
    if p not in m.ready_parents and any(s.parent == p.uid for s in m.forks):
        m.ready_parents.append(p)


def leave(m, s: Request) -> None:
    """The child waits no more."""
    m.forks.remove(s)
    m.ready_parents = [p for p in m.ready_parents if p.uid != s.parent or any(x.parent == p.uid for x in m.forks)]
    s.parent = 0


def queue_child(m, s: Request) -> None:
    """Before requests that never ran: its parent had its turn, and the child is a part of that."""
    leave(m, s)
    s.queue_class = 1
    m.queue.append(s)


def forget(m, ended: Request) -> None:
    """A request ended: a child that waits is gone, the children of a parent are computed from their tokens."""
    if ended in m.forks:
        leave(m, ended)
    for child in [s for s in m.forks if s.parent == ended.uid]:
        queue_child(m, child)


def rings_reach(m, parent: Request, child: Request) -> bool:
    """What the child's first position reads was not overwritten: its window, and the start of its compressed group.

    A ring of n rows keeps the n newest positions that were written; the last committed step may have written drafts
    behind the token that was kept, and steps in flight write up to their reserved end. A parent that was computed from
    a prefix hit has nothing before the start of it.
    """
    c = m.settings
    first, f = child.len - 1, parent.inflight
    newest, oldest = parent.cached - 1 + (f * c.q if f else c.q - 1), parent.swa_valid_start
    if c.window:
        needed = max(0, first - (c.window - 1))
        if needed < first and (newest - c.ring >= needed or needed < oldest):
            return False
    for r in c.ratios if m.state.size else ():
        group = first - first % r
        if group < first and (newest - (r + c.state_backtrack - 1) >= group or group < oldest):
            return False
    return True


def hold_source(pool, unit: int, step_id: int) -> None:
    """Nobody gets the unit before the step that copies it is done."""
    pool.last_use[unit] = max(pool.last_use.get(unit, 0), step_id)


def clone(m, step: Step, out, parent: Request, child: Request, shared: int, fresh: int) -> None:
    record = out.out
    for block in parent.blocks[:shared]:
        m.main.share(block)
    child.blocks = parent.blocks[:shared] + m.main.take(fresh)
    if (child.len - 1) % m.settings.block_size:
        record.clone_blocks.append([parent.blocks[shared], child.blocks[shared]])
        hold_source(m.main, parent.blocks[shared], step.step_id)
    for pool, name, number in ((m.swa, "swa_slot", POOL_SWA), (m.state, "state_slot", POOL_STATE)):
        if pool.size:
            setattr(child, name, pool.take_one())
            record.clone_slots.append([number, getattr(parent, name), getattr(child, name)])
            hold_source(pool, getattr(parent, name), step.step_id)
    child.row_slot = m.rows.take_one()
    leave(m, child)
    start_running(m, child, awaits_first=False)
    child.cached = child.len - 1
    child.chain_epoch = parent.chain_epoch
    record.flags |= FLAG_FORKS
    ready(m, child)


def carry_out(m, step: Step, out, candidates: list[Request]) -> None:
    """For every child whose parent was computed before this step, after all others had their blocks."""
    c = m.settings
    decided = [p for p in m.ready_parents if p.phase == Phase.RUNNING and not p.awaits_first]
    children = [s for p in m.ready_parents if p in decided for s in m.forks if s.parent == p.uid]
    m.ready_parents = []
    for child in children:
        parent = m.requests[child.parent]
        shared = (child.len - 1) // c.block_size
        fresh = c.blocks(child.len - 1 + c.q) - shared
        has_units = fresh <= m.main.available and m.swa.has(1) and m.state.has(1)
        if m.admitted < c.max_num_seqs and has_units and rings_reach(m, parent, child):
            clone(m, step, out, parent, child, shared, fresh)
            candidates.append(child)
        else:
            queue_child(m, child)
