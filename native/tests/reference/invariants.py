"""The invariants of ``spec/engine.md`` 12 that can be stated on the scheduler: one function each, for every command.

``w`` is an `Observer`. The other invariants are about kernels, samplers, ranks or processes; `PROVED_BY` in
``test_invariant_table.py`` names the test of each of the forty.
"""

from __future__ import annotations

import itertools
from collections import Counter

from reference.observer import POOLS, SLOTS, is_attempt, is_decode
from reference.records import KIND_DECODE, KIND_PREFILL, Phase

P = Phase
TRANSITIONS = {
    (P.SUBMITTED, P.WAITING),
    (P.WAITING, P.PREFILL),
    (P.WAITING, P.RUNNING),
    (P.PREFILL, P.PREFILL),
    (P.PREFILL, P.RUNNING),
    (P.RUNNING, P.WAITING),
    (P.WAITING, P.ZOMBIE),
    (P.PREFILL, P.ZOMBIE),
    (P.RUNNING, P.ZOMBIE),
    (P.ZOMBIE, P.RETIRED),
    (P.RUNNING, P.HANDOFF),
    (P.SUBMITTED, P.HANDOFF),
    (P.HANDOFF, P.PREFILL),
    (P.HANDOFF, P.ZOMBIE),
}


def must(condition, number: int, *what) -> None:
    if not condition:
        raise AssertionError(f"invariant {number}: " + " ".join(str(x) for x in what))


def invariant_1(w):
    """Every submitted uid gets exactly one terminal event."""
    for uid, n in w.terminals.items():
        must(n <= 1, 1, "request", uid, "has", n)
    if not w.m.unfinished and not w.m.waiting_events:
        for uid in range(1, w.m.next_uid + 1):
            must(w.terminals[uid] == 1, 1, "request", uid, "has", w.terminals[uid])


def invariant_2(w):
    """``output_index`` counts 1, 2, 3 ... without gaps, and nothing follows the terminal event."""
    must(not w.gaps, 2, w.gaps)
    must(not w.after_end, 2, w.after_end)


def invariant_3(w):
    """Phase transitions are a subset of table 1.3."""
    for change in w.transitions:
        must(change in TRANSITIONS, 3, change)


def invariant_4(w):
    """``0 <= f <= depth``; commits happen in step order."""
    m = w.m
    must(m.launched - m.committed == len(m.open) <= m.settings.depth, 4, "open steps", len(m.open))
    must([s.step_id for s in m.open] == list(range(m.committed + 1, m.launched + 1)), 4, "order")
    flying = Counter((r.request.uid, r.generation) for step in m.open for r in step.rows)
    for s in m.requests.values():
        expected = 0 if s.is_terminal else flying[s.uid, s.generation]
        must(s.inflight == expected, 4, "f of", s.uid, s.inflight, expected)
        must(s.inflight_all == sum(n for (uid, _), n in flying.items() if uid == s.uid), 4, "all steps of", s.uid)


def invariant_5(w):
    """``cached <= len``; RUNNING with nothing in flight: ``cached == len - 1``."""
    for s in w.m.requests.values():
        must(0 <= s.cached <= s.len, 5, s.uid, s.cached, s.len)
        if s.phase == P.RUNNING and s.inflight == 0:
            must(s.cached == s.len - 1, 5, s.uid, s.cached, s.len)


def invariant_6(w):
    """``T <= max_num_batched_tokens``, ``N <= max_num_seqs``."""
    if w.outputs:
        must(w.outputs.num_batched_tokens <= w.m.settings.max_num_batched_tokens, 6, "T", w.outputs.num_batched_tokens)
        must(w.outputs.num_reqs <= w.m.settings.max_num_seqs, 6, "N", w.outputs.num_reqs)


def invariant_7(w):
    """``sum(seqlens_q) == T``; decode ``1 <= seqlens_q <= Q``."""
    if w.outputs:
        must(sum(w.outputs.seqlens_q) == w.outputs.num_batched_tokens, 7, w.outputs.seqlens_q)
        limit = w.m.settings.q if w.outputs.kind == KIND_DECODE else w.outputs.num_batched_tokens
        must(all(1 <= q <= limit for q in w.outputs.seqlens_q), 7, w.outputs.seqlens_q)


def invariant_8(w):
    """No position reaches ``max_pos``, the drafter's included, and every position has a block."""
    if w.outputs:
        o, c = w.outputs, w.m.settings
        for k, q, table in zip(o.seqlens_k, o.seqlens_q, o.tables, strict=True):
            end = k - q + c.q + c.num_draft if o.kind == KIND_DECODE else k
            must(end <= c.max_pos, 8, "end", end, "of", c.max_pos)
            must(k <= len(table) * c.block_size, 8, "position", k, "has no block in", table)


def invariant_9(w):
    """A step is all prefill or all decode (ranks: the votes' own tests)."""
    if w.outputs and w.outputs.num_reqs:
        o = w.outputs
        must(o.num_decode_reqs == (o.num_reqs if o.kind == KIND_DECODE else 0), 9, "kinds are mixed")
        for uid, k in zip(o.seq_uid, o.seqlens_k, strict=True):
            s = w.m.requests[uid]
            must(o.kind == KIND_DECODE or k <= s.len, 9, uid, "computes past its tokens in a prefill step")


def invariant_10(w):
    """First chunks come in ticket order among equal priority."""
    if w.outputs and w.outputs.kind == KIND_PREFILL:
        for priority, tickets in w.firsts.items():
            must(tickets == sorted(tickets), 10, "priority", priority, tickets)


def invariant_11(w):
    """Chunks of a prompt are contiguous, disjoint and cover it once."""
    for (uid, generation), chunks in w.chunks.items():
        for (_, end, _), (start, _, _) in itertools.pairwise(chunks):
            must(start == end, 11, "request", uid, generation, chunks)
        s = w.m.requests.get(uid)
        if s and s.generation == generation and s.phase == P.RUNNING:
            must(chunks[-1][1] == chunks[-1][2], 11, "request", uid, "runs before its prompt is whole", chunks)


def invariant_13(w):
    """An attempt with an admissible head and resources is never empty."""
    if w.outputs and is_attempt(w.before) and w.before.is_known and w.before.want:
        must(w.outputs.num_reqs > 0, 13, "an empty prefill step")


def invariant_14(w):
    """With work present and nothing in flight, a token is scheduled within ``interval_any + depth + 2`` calls."""
    c = w.m.settings
    must(w.empty_calls <= c.prefill_interval_any + c.depth + 2, 14, w.empty_calls, "empty calls")


def invariant_15(w):
    """``sum(ref)`` = table entries and slots + pins, per pool, unit by unit."""
    expected_all = Counter({unit: len(uids) for unit, uids in w.owner.items()}) + w.pinned
    for name in POOLS:
        expected = {unit: n for (pool, unit), n in expected_all.items() if pool == name}
        must(getattr(w.m, name).ref == expected, 15, name, getattr(w.m, name).ref, expected)


def invariant_16(w):
    """FREE, CACHED, LIMBO, HELD and NULL partition every pool."""
    for name in POOLS:
        pool = getattr(w.m, name)
        units = [*pool.free, *pool.cached, *pool.ref, *(unit for _, unit in pool.limbo)]
        must(sorted(units) == list(range(1, pool.size)), 16, name, sorted(units))
        must(pool.registered >= set(pool.cached) and not pool.registered & set(pool.free), 16, name, "registered")


def invariant_17(w):
    """INDEX has no allocator: the block of a position is one id for both, so their states cannot differ."""
    if w.outputs:
        for uid, table in zip(w.outputs.seq_uid, w.outputs.tables, strict=True):
            must(len(set(table)) == len(table), 17, "request", uid, "has a block twice", table)


def invariant_18(w):
    """Id 0 is never allocated or released."""
    for name in POOLS:
        pool = getattr(w.m, name)
        must(0 not in {*pool.ref, *pool.free, *pool.cached} and all(unit for _, unit in pool.limbo), 18, name)
    for s in w.m.requests.values():
        must(all(s.blocks), 18, "request", s.uid, s.blocks)


def invariant_19(w):
    """No unit whose epoch is not done is given to a writer (strict mode); a prefix hit may share one."""
    if w.m.settings.stream_ordered_reuse or w.before is None:
        return
    writers = w.writers
    for name in ("main", "swa", "state"):
        for unit in set(getattr(w.m, name).ref) - w.before.held[name]:
            if not writers.get((name, unit)):
                continue
            epoch = w.before.epoch[name].get(unit, 0)
            must(epoch <= w.before.done, 19, name, unit, "of step", epoch, "while", w.before.done, "is done")


def invariant_20(w):
    """No request but those in it may write a unit of a launched step that is not done (strict mode)."""
    if w.m.settings.stream_ordered_reuse:
        return
    owner = w.writers
    for step, used in w.uses.items():
        for unit, uids in used.items():
            must(set(owner.get(unit, ())) <= uids, 20, unit, "of step", step, "changed hands")


def invariant_21(w):
    """Idle: everything is free or cached, limbo is empty."""
    m = w.m
    if not m.requests and not m.pins and m.launched == m.done:
        for name in POOLS:
            pool = getattr(m, name)
            must(pool.available == pool.total and not pool.limbo, 21, name, pool.available, "of", pool.total)


def invariant_22(w):
    """A request that holds nothing has no handle left to release again."""
    for s in w.m.requests.values():
        if s.phase in (P.SUBMITTED, P.WAITING, P.ZOMBIE):
            must(not s.blocks and not any(getattr(s, name) for _, name in SLOTS), 22, "request", s.uid, s.phase)


def invariant_25(w):
    """Nothing is preempted in a step where no request lacked a block."""
    if w.m.count["preemptions"] > (w.before.preemptions if w.before else 0):
        must(is_decode(w.before), 25, "preempted by", w.before.command)
        must(w.before.lacks or not w.before.is_known, 25, "nobody lacked a block")


def invariant_26(w):
    """A held request runs or is preempted within ``depth + 1`` steps."""
    for uid, n in w.holds.items():
        must(n <= w.m.settings.depth + 1, 26, "request", uid, "was held", n, "times")


def invariant_28(w):
    """Rows of requests that had ended change no token, position or event."""
    if w.before is None:
        return
    for s in w.m.requests.values():
        if s.uid in w.before.ended:
            must((s.len, s.cached) == w.before.ended[s.uid], 28, "request", s.uid, "changed after its end")


def invariant_29(w):
    """A request that is certain to hit ``max_tokens`` is never over-run."""
    if w.outputs and w.outputs.kind == KIND_DECODE:
        for uid, f, length in zip(w.outputs.seq_uid, w.outputs.inflight, w.outputs.full_len, strict=True):
            s = w.m.requests[uid]
            must(f == 0 or length - s.prompt_len + f < s.max_tokens, 29, "request", uid, length, f)


def invariant_31(w):
    """``remap`` is injective, correct by uid, and the identity whenever the order is unchanged."""
    if not w.outputs or not w.outputs.num_reqs:
        return
    o = w.outputs
    mapped = [r for r in o.remap if r >= 0]
    must(len(mapped) == len(set(mapped)), 31, o.remap)
    must(o.kind == KIND_DECODE or not mapped, 31, "a prefill row is mapped")
    before = w.rows.get(o.step_id - 1, [])
    for uid, r, f in zip(o.seq_uid, o.remap, o.inflight, strict=True):
        must((r >= 0) == (f > 0), 31, "request", uid, r, f)
        must(r < 0 or before[r] == uid, 31, "request", uid, "is not row", r)
    if len(mapped) == o.num_reqs and o.seq_uid == before:
        must(mapped == list(range(o.num_reqs)), 31, "not the identity", o.remap)


def invariant_38(w):
    """No position of a registered or shared block is written; a registered block holds the tokens it is known for."""
    m, c = w.m, w.m.settings
    for s in m.requests.values():
        for at, block in enumerate(s.blocks):
            first_written = max(s.cached, s.store_from)
            if (at + 1) * c.block_size > first_written:
                must(
                    m.main.ref[block] - w.pinned["main", block] == 1,
                    38,
                    "request",
                    s.uid,
                    "may write the shared block",
                    block,
                )
                must(block not in m.main.registered, 38, "request", s.uid, "may write the registered block", block)
            if block in m.prefix.nodes:
                must(m.prefix.nodes[block].tokens == m.prefix.block_tokens(s, at), 38, "content of", block)
    if w.outputs and w.outputs.kind == KIND_DECODE:
        for uid, k, q, table in zip(
            w.outputs.seq_uid, w.outputs.seqlens_k, w.outputs.seqlens_q, w.outputs.tables, strict=True
        ):
            written = set(table[(k - q) // c.block_size :])
            must(not written & m.main.registered, 38, "request", uid, "writes", written & m.main.registered)


CHECKS = [value for name, value in list(globals().items()) if name.startswith("invariant_")]
