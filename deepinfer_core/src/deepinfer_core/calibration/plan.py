"""Which steps to measure: chunks of one long prompt, and batches of short ones with the decode steps behind them."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

LEVELS = 6
SIZES = 4
MOST_TOKENS = 2048
"""Longest context that is measured; the closed forms carry on from there."""
LEAST_TOKENS = 16
"""Shortest context in which the plan has steps of both kinds."""
SHORT = 16
DECODE_STEPS = 4


@frozen
class Batch:
    """``n`` prompts of ``length`` tokens at once, and ``DECODE_STEPS`` decode steps behind them."""

    n: int
    length: int


def chunks_of(limit: int, largest: int) -> tuple[int, ...]:
    """Chunk sizes that together make one prompt of about ``limit`` tokens.

    At each of ``LEVELS`` evenly spaced ends stand chunks of ``SIZES`` sizes, each a quarter of the next one, and what
    lies between is one more chunk: every (size, end) is a point, and each token is computed once.

    :param largest: Tokens that a step holds at most.
    """
    gap = max(SIZES, limit // LEVELS)
    top = min(max(SIZES, gap // 2), largest)
    sizes = sorted({max(1, top // 4**i) for i in range(SIZES)})
    plan: list[int] = []
    for _ in range(LEVELS):
        if sum(plan) + gap > limit:
            break
        rest = gap - sum(sizes)
        while rest > 0:
            plan.append(min(rest, largest))
            rest -= plan[-1]
        plan += sizes
    return tuple(plan)


def batches_of(limit: int, max_num_seqs: int, budget_tokens: int) -> Sequence[Batch]:
    """Batches of growing size with short prompts, and two of them with longer ones, as far as the caches hold them."""
    short = [Batch(n, min(SHORT, limit)) for n in (1, 2, 4, 8)]
    longer = [Batch(n, limit // 4) for n in (1, 2)]
    return [b for b in (*short, *longer) if b.n <= max_num_seqs and b.n * (b.length + 1) <= budget_tokens and b.length]
