"""Verification lengths (``spec/engine.md`` 7): how many drafts each request of a decode step verifies."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from reference.records import KIND_DECODE, Drafts, Refused, Request

UNITS = 2048
"""Of the chance 1: the budget counts chances in whole units, rounded half up."""


def f32(x: float) -> float:
    return struct.unpack("f", struct.pack("f", x))[0]


def cumulative(confidence: list[float]) -> list[float]:
    """Chance that draft j and all before it are accepted, each product rounded to single precision."""
    out, all_before = [], 1.0
    for x in confidence:
        all_before = f32(all_before * f32(min(1.0, max(0.0, x))))
        out.append(all_before)
    return out


@dataclass
class Rounds:
    """What is known of a request's drafts: of the newest round, and of the one before."""

    generation: int
    newest: list[float] | None = None
    before: list[float] | None = None
    has_draft: bool = True  # the newest proposed at least one


class VerifyLengths:
    def __init__(self, settings):
        self.settings = settings
        self.is_on = settings.verify_lengths == "confidence" and settings.num_draft > 0
        self.sizes: list[int] = []
        self.ms: list[float] = []
        self.rounds: dict[int, Rounds] = {}

    def set_curve(self, sizes, ms) -> bool:
        if not self.is_on:
            raise Refused("argument", "lengths are fixed")
        self.sizes, self.ms = list(sizes), list(ms)
        return True

    def known(self, s: Request) -> Rounds:
        r = self.rounds.get(s.uid)
        return r if r and r.generation == s.generation else Rounds(s.generation)

    def keep(self, s: Request, drafts: Drafts | None) -> None:
        """A round ended. Without confidences each draft counts as certain; one of -1 is none."""
        if not self.is_on:
            return
        values = None
        if drafts:
            chances = drafts.confidence or [1.0] * self.settings.num_draft
            values = cumulative([x if draft >= 0 else 0.0 for draft, x in zip(drafts.ids, chances, strict=True)])
        has_draft = drafts is not None and drafts.ids[0] >= 0
        self.rounds[s.uid] = Rounds(s.generation, values, self.known(s).newest, has_draft)

    def values(self, candidates: list[Request]) -> tuple[list[list[float]], list[list[float]]]:
        """(for the budget, for the distribution). Rows that follow a step in flight go by the newest round in both; of
        the others of such a step the device knows nothing."""
        k = self.settings.num_draft
        ones, zeros = [1.0] * k, [0.0] * k
        if any(s.inflight for s in candidates):
            both = [(self.known(s).newest or ones) if s.inflight else zeros for s in candidates]
            return both, both
        with_drafts = [s.has_drafts and self.known(s).has_draft for s in candidates]
        pairs = list(zip(candidates, with_drafts, strict=True))
        budget = [(self.known(s).before or ones) if has else zeros for s, has in pairs]
        share = [(self.known(s).newest or ones) if has else zeros for s, has in pairs]
        return budget, share

    def total(self, values: list[list[float]]) -> int:
        """The first number of rows with the largest quotient of expected tokens, in whole units, and time."""
        n = len(values)
        taken, best, best_total = n * UNITS, -1.0, n
        ordered = sorted((int(f32(v * UNITS + 0.5)) for row in values for v in row), reverse=True)
        for t in range(n, n + len(ordered) + 1):
            taken += ordered[t - n - 1] if t > n else 0
            graph = next(i for i, size in enumerate(self.sizes) if size >= t)
            if taken / self.ms[graph] > best:
                best, best_total = taken / self.ms[graph], t
        return best_total

    def lengths(self, candidates: list[Request]) -> list[int]:
        if not self.is_on or not self.sizes or not candidates:
            return [self.settings.q] * len(candidates)
        budget, share = self.values(candidates)
        extra = self.total(budget) - len(candidates)
        order = sorted(((-v, i, j) for i, row in enumerate(share) for j, v in enumerate(row)))
        taken = [i for _, i, _ in order[:extra]]
        return [1 + taken.count(i) for i in range(len(candidates))]


def correct(m, step_id: int, lengths: list[int]) -> bool:
    """The device shared the step's rows out otherwise."""
    if not m.varlen.is_on:
        raise Refused("argument", "lengths are fixed")
    step = m.open[-1] if m.open else None
    if step is None or step.step_id != step_id or step.kind != KIND_DECODE:
        raise Refused("order", f"step {step_id} is not the newest decode step")
    if len(lengths) != len(step.rows) or not all(1 <= q <= m.settings.q for q in lengths):
        raise Refused("argument", "lengths out of bounds")
    if sum(lengths) != step.tokens:
        raise Refused("argument", "another sum")
    for row, q in zip(step.rows, lengths, strict=True):
        row.q = q
    return True
