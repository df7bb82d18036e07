"""Greedy speculation without an engine: draft, verify in one decode step, keep what holds, go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from attrs import define, field
from torch import Tensor
from v41_driver import Driver, Sequence_

Spoil = Callable[[int, list[int]], list[int]]
"""(step, drafts) -> the drafts to verify: however wrong."""


@define(eq=False)
class Run:
    """``tokens``: the anchor and all that follows. ``logits``: of every position from the anchor's predecessor on."""

    tokens: list[int] = field(factory=list)
    accepted: list[int] = field(factory=list)
    logits: list[Tensor] = field(factory=list)
    drafts: list[list[int]] = field(factory=list)
    confidences: list[Tensor] = field(factory=list)

    def steps(self, count: int) -> int:
        """Steps until ``count`` tokens behind the anchor were there."""
        made = 0
        for step, kept in enumerate(self.accepted, start=1):
            made += kept + 1
            if made >= count:
                return step
        raise AssertionError(f"{made} tokens of {count}")


def speculate(driver: Driver, ids: Sequence[int], count: int, *, spoil: Spoil | None = None, chunk: int = 4096) -> Run:
    """At least ``count`` tokens behind the anchor; ``spoil`` changes drafts before they are verified."""
    (run,) = speculate_together(driver, [ids], count, spoils=[spoil], chunk=chunk)
    return run


def speculate_together(
    driver: Driver,
    prompts: Sequence[Sequence[int]],
    count: int,
    *,
    spoils: Sequence[Spoil | None] | None = None,
    chunk: int = 4096,
) -> list[Run]:
    """The same for several prompts in the same steps, until each has ``count`` tokens behind its anchor."""
    spoils = spoils or [None] * len(prompts)
    # Until the slowest has enough, each step may add a whole block to the others.
    sequences, runs = [driver.open(ids, 6 * count) for ids in prompts], [Run() for _ in prompts]
    for s, ids in zip(sequences, prompts, strict=True):
        driver.prefill(s, len(ids) - 1, chunk)
    hidden = driver.run([(s, 1) for s in sequences], prompt=True)
    logits = driver.model.logits(hidden)
    for run, row in zip(runs, logits, strict=True):
        run.logits.append(row)
        run.tokens.append(int(row.argmax()))
    proposal = driver.draft([run.tokens[-1] for run in runs])
    while min(len(run.tokens) for run in runs) <= count:
        for i, (run, s) in enumerate(zip(runs, sequences, strict=True)):
            drafts = proposal.tokens[i].tolist()
            run.drafts.append(drafts)
            run.confidences.append(proposal.confidences[i])
            spoil = spoils[i]
            s.tokens += [run.tokens[-1], *(drafts if spoil is None else spoil(len(run.accepted), drafts))]
        q = 1 + proposal.tokens.shape[1]
        rows = driver.model.logits(driver.run([(s, q) for s in sequences], prompt=False)).view(len(runs), q, -1)
        kept = [_verify(run, s, part) for run, s, part in zip(runs, sequences, rows, strict=True)]
        proposal = driver.draft([run.tokens[-1] for run in runs], kept)
    driver.close(*sequences)
    return runs


def _verify(run: Run, s: Sequence_, rows: Tensor) -> int:
    """Keep the drafts that are the best tokens of their rows, and the token behind them; roll the rest back."""
    best, start = rows.argmax(-1).tolist(), s.done - len(rows)
    fed = s.tokens[start + 1 :]
    kept = next((j for j, token in enumerate(fed) if token != best[j]), len(fed))
    run.accepted.append(kept)
    run.tokens += [*fed[:kept], best[kept]]
    run.logits += list(rows[: kept + 1])
    s.done = start + 1 + kept
    del s.tokens[s.done :]
    return kept


def decode_alone(driver: Driver, ids: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """Logits of the same positions by one-by-one decoding: of the last prompt row, then behind each of ``tokens``."""
    s = driver.open([*ids, *tokens])
    driver.prefill(s, len(ids) - 1, 4096)
    hidden = [driver.run([(s, 1)], prompt=True), *driver.decode(s, len(ids) + len(tokens))]
    driver.close(s)
    return driver.model.logits(torch.cat(hidden))
