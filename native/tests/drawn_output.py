"""What a sampler might say about a step: tokens, accepted drafts and failed rows at random."""

from __future__ import annotations

import random

import numpy as np
from reference.records import KIND_DECODE, Step
from reference.varlen import f32

from deepinfer_contracts import SamplerOutput


class Drawn:
    """From ``rng``, but for the drafts: those come from the step's number, so that a run with given commands takes the
    same course whatever is proposed."""

    def __init__(self, rng: random.Random, config, step: Step | None, bad_rows: float):
        rows = step.rows if step else []
        vocab, self.k = config.vocab_size, config.num_draft
        self.step = step
        self.sampled = [rng.randrange(vocab) for _ in rows]
        self.accepted = [[rng.randrange(vocab) for _ in range(rng.randrange(r.q))] for r in rows]
        if step and step.kind != KIND_DECODE:
            self.accepted = [[] for _ in rows]
        self.ok = [rng.random() >= bad_rows for _ in rows]
        self.drafts, self.confidence = None, None
        if self.k and config.verify_lengths == "confidence":
            self.confidence = [[f32(rng.random()) for _ in range(self.k)] for _ in rows]
        if self.k and step:
            self._propose(random.Random(step.step_id), config, len(rows))

    def _propose(self, rng: random.Random, config, n: int) -> None:
        """Usually K drafts a row; now and then fewer, or no confidence. None at all is not what the contract says."""
        if config.validation == "off" and rng.random() < 0.1:
            return
        self.drafts = [[rng.randrange(config.vocab_size) for _ in range(self.k)] for _ in range(n)]
        if rng.random() < 0.3:
            for ids in self.drafts:
                first = rng.randrange(self.k + 1)
                ids[first:] = [-1] * (self.k - first)
        if rng.random() < 0.1:
            self.confidence = None

    def output(self) -> SamplerOutput:
        n, k = len(self.sampled), self.k
        out = SamplerOutput(
            sampled_ids=np.asarray(self.sampled, np.int32),
            sampled_logprob=np.full(n, -0.5, np.float32),
            row_status=np.asarray([0 if good else 1 for good in self.ok], np.int8),
        )
        if self.drafts:
            out.draft_ids = np.asarray(self.drafts, np.int32)
        if self.confidence:
            out.confidence = np.asarray(self.confidence, np.float32).reshape(n, k)
        if k and self.step.kind == KIND_DECODE:
            verified = []
            for row, taken in zip(self.step.rows, self.accepted, strict=True):
                verified += [*taken, *[-1] * (row.q - len(taken))]
            out.verified_ids = np.asarray(verified, np.int32)
            out.accepted = np.asarray([len(taken) for taken in self.accepted], np.int32)
        return out
