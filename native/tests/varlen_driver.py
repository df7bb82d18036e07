"""A fake device with a drafter of prescribed confidences, that distributes the rows of a step itself.

At depth 2 the host fixes a step's tokens before it knows the confidences of the step in flight; the device then shares
them out by those, as ``meta.verify_lengths`` does, and reports the lengths before it samples.
"""

from __future__ import annotations

import zlib

import numpy as np
from native_driver import Driver, require, small_config

from deepinfer_contracts import StepKind
from deepinfer_native import reference_verify as reference
from deepinfer_native.verify import cumulative

K = 3
SIZES = (1, 2, 4, 8, 12, 16, 24, 32)
MS = (1.0, 1.1, 1.25, 1.6, 1.9, 2.6, 4.0, 5.5)


def varlen_config(**changes):
    values = {"num_draft": K, "verify_lengths": "confidence", "max_num_seqs": 8, "num_blocks": 120}
    return small_config(**{**values, "num_swa_slots": 18, "num_state_slots": 18, **changes})


def confidences_of(uid, length, how):
    """Conditional confidences of the drafts that follow ``length`` tokens of a request."""
    seed = zlib.crc32(f"{how}-{uid}-{length}".encode())
    rng = np.random.default_rng(seed)
    if how == "ties":
        return rng.choice(np.array([0, 0.5, 1], np.float32), K)
    if how == "ones":
        return np.ones(K, np.float32)
    if how == "zeros":
        return np.zeros(K, np.float32)
    return rng.random(K).astype(np.float32)


class VarlenDriver(Driver):
    """``how``: which confidences the drafter has; ``device``: whether it shares the rows out itself."""

    def __init__(self, config, how="random", good_drafts=2, device=True, curve=(SIZES, MS)):
        super().__init__(config, good_drafts)
        self.how = how
        self.device_corrects = device
        self.last_confidence = None  # [N, K] of the step sampled last
        self.last_accepted = None  # [N]
        self.records = []
        if curve is not None:
            self.core.set_verify_curve(*curve)

    def sample(self, kind, rows):
        out = super().sample(kind, rows)
        confidence = np.zeros((len(rows), K), np.float32)
        for i, (uid, _, _, is_last, _, _) in enumerate(rows):
            if kind == StepKind.PREFILL and not is_last:
                continue
            request = self.follower.requests[uid]
            if request.reason:
                continue  # it has ended: no budget for its over-run
            added = 1 + int(out.accepted[i]) if out.accepted is not None else 1
            length = len(request.history) + added
            emitted = [*out.verified_ids[rows[i][4] : rows[i][4] + added - 1], out.sampled_ids[i]] if added > 1 else []
            if not any(token in request.stop for token in emitted or [out.sampled_ids[i]]):
                confidence[i] = confidences_of(uid, length, self.how)
        out.confidence = confidence
        self.last_confidence = confidence
        self.last_accepted = out.accepted
        return out

    def schedule(self, mode=None):
        o = super().schedule(mode)
        if o.num_reqs:
            self.records.append((o.step_id, o.seqlens_q.copy(), o.remap.copy(), StepKind(o.kind)))
        return o

    def correct(self, o):
        """Share the step's rows out by what the device has, and tell the core."""
        if not self.device_corrects or o.kind != StepKind.DECODE or (o.remap < 0).all():
            return
        known = np.zeros((o.num_reqs, K), np.float32)
        for i, row in enumerate(o.remap.tolist()):
            if row >= 0:
                known[i] = self.last_confidence[row]
        lengths = np.array(reference.lengths(cumulative(known), int(o.num_batched_tokens)), np.int32)
        self.put_lengths(o, lengths)

    def put_lengths(self, o, lengths):
        """The device ran the step with these lengths."""
        published = o.seqlens_q.copy()
        self.core.correct(o.step_id, lengths)
        require((o.seqlens_q == published).all(), "the published lengths changed")
        step, kind, rows = self.open[-1]
        first = np.concatenate([[0], np.cumsum(lengths)]).tolist()
        corrected = [(r[0], r[1], q, r[3], f, r[5]) for r, q, f in zip(rows, lengths.tolist(), first, strict=False)]
        self.open[-1] = (step, kind, corrected)
        for row, q in zip(self.device.unread[step].rows, lengths.tolist(), strict=True):
            row.q = q

    def step(self):
        o = self.schedule()
        if not o.num_reqs:
            while self.open:
                self.retire()
            self.poll()
            return o
        while len(self.open) > 1:
            self.retire()
        self.correct(o)
        self.check_sampler_inputs(o)
        if self.config.depth == 1 or o.kind == StepKind.PREFILL:
            self.retire()
        return o

    def check_sampler_inputs(self, o):
        """Rows and draft rows follow the lengths that hold, positions the tokens that were committed."""
        inputs = self.core.pack_sampler(o.step_id)
        if o.kind != StepKind.DECODE:
            return
        at = 0
        _, _, rows = self.open[-1]
        for i, (uid, _, q, _, _, remap) in enumerate(rows):
            require(inputs.first_row[i] == at and inputs.row_count[i] == q, "rows of", uid)
            request = self.follower.requests[uid]
            if not request.reason:
                require(inputs.sample_pos[i] == len(request.history), "position of", uid)
                # The bound that the host published, moved back by what the step before rejected (invariant 32).
                start = int(o.seqlens_k[i]) - int(o.seqlens_q[i])
                rejected = K - int(self.last_accepted[remap]) if remap >= 0 else 0
                require(start - rejected == len(request.history) - 1, "corrected start of", uid)
            slot = int(o.draft_read_slot[i])
            expected = [slot * K + j for j in range(q - 1)] + [0]
            require(inputs.draft_rows[at : at + q].tolist() == expected, "draft rows of", uid, remap)
            at += q
        require(at == o.num_batched_tokens, "rows of the step")
