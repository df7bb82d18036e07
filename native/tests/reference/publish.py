"""The record of one step (``spec/engine.md`` 6.1): rows, lists, totals."""

from __future__ import annotations

from reference.records import (
    FLAG_EMPTY,
    FLAG_IDENTITY,
    FLAG_REPLAY,
    KIND_DECODE,
    KIND_PREFILL,
    Outputs,
    Reason,
    Request,
    Row,
    Step,
)


class StepWriter:
    """Fills an `Outputs` while a pass runs."""

    def __init__(self, model, step: Step):
        self.model = model
        self.step = step
        self.out = Outputs(step.step_id, step.kind)
        self.zero_slots = self.out.zero_slots
        self.held_uid = self.out.held_uid
        self.preempted_uid = self.out.preempted_uid

    def note_blocks(self, s: Request, first: int) -> None:
        self.out.bt_delta += [[s.row_slot, column, s.blocks[column]] for column in range(first, len(s.blocks))]

    def add_row(self, step: Step, s: Request, start: int, q: int, is_last_chunk: bool) -> None:
        o = self.out
        is_mapped = s.inflight > 0
        o.seq_uid.append(s.uid)
        o.generation.append(s.generation)
        o.row_slot.append(s.row_slot)
        o.seqlens_q.append(q)
        o.seqlens_k.append(start + q)
        o.cached.append(s.cached)
        o.inflight.append(s.inflight)
        o.full_len.append(s.len)
        o.is_last_chunk.append(int(is_last_chunk))
        o.remap.append(s.last_row if is_mapped else -1)
        o.state_slot.append(s.state_slot)
        o.swa_slot.append(s.swa_slot)
        o.draft_read_slot.append(s.draft_slot if s.has_drafts == 1 or is_mapped else 0)
        o.draft_write_slot.append(s.draft_slot)
        # A decoded position is a window or more behind the start of any replay.
        o.swa_valid_start.append(s.swa_valid_start if step.kind == KIND_PREFILL else 0)
        o.tables.append(list(s.blocks))
        o.hit_tokens.append(0)
        o.replayed_tokens.append(0)
        s.last_step = step.step_id
        s.last_row = len(step.rows)
        s.inflight += 1
        s.inflight_all += 1
        step.rows.append(Row(s, s.generation, start, q, is_last_chunk))

    def note_prefix(self, s: Request, is_first: bool) -> None:
        """What the hit of the row just added saved and repeats; said once, with its first chunk."""
        if self.step.rows[-1].start < s.store_from:
            self.out.flags |= FLAG_REPLAY
        if is_first:
            self.out.hit_tokens[-1] = s.swa_valid_start
            self.out.replayed_tokens[-1] = s.store_from - s.swa_valid_start

    def sweep(self) -> None:
        """Requests that ended since the last report, until one of the two lists is full."""
        o, limit = self.out, self.model.settings.max_num_seqs
        ended = self.model.ended
        while ended and len(o.finished_uid) < limit and len(o.ignored_uid) < limit:
            s = ended.popleft()
            name = "ignored" if s.reason == Reason.TOO_LONG else "finished"
            getattr(o, f"{name}_uid").append(s.uid)
            getattr(o, f"{name}_reason").append(int(s.reason))

    def publish(self) -> Outputs:
        o = self.out
        n = len(self.step.rows)
        o.num_reqs = n
        o.num_decode_reqs = n if o.kind == KIND_DECODE else 0
        o.num_batched_tokens = self.step.tokens
        is_identity = n > 0 and o.remap == list(range(n))
        o.flags |= (0 if n else FLAG_EMPTY) | (FLAG_IDENTITY if is_identity else 0)
        o.sum_qk = sum(q * k for q, k in zip(o.seqlens_q, o.seqlens_k, strict=True))
        o.min_k = min(o.seqlens_k, default=0)
        o.max_k = max(o.seqlens_k, default=0)
        return o
