"""What became of a workload, for a reader."""

from __future__ import annotations

from collections.abc import Iterator

from deepinfer_verify.ppl.comparison import TOLERANCE, Verdict
from deepinfer_verify.ppl.outcomes import Outcome

MAX_SHOWN = 8
"""Samples whose difference is shown; the others are counted."""


def lines_of(outcome: Outcome) -> Iterator[str]:
    """A line of facts, the verdict, and what differs."""
    found = outcome.found
    tokens = sum(len(sample.logprobs) for sample in found.samples)
    verified = sum(sum(sample.verified) for sample in found.samples)
    accepted = sum(sum(sample.accepted) for sample in found.samples)
    drafts = f", {accepted:,} of {verified:,} drafts accepted" if verified else ""
    yield (
        f"{found.workload['name']}: perplexity {found.perplexity:.6f} over {tokens:,} decoded tokens of "
        f"{_count(len(found.samples), 'sample')} behind {found.workload['in']:,}{drafts}"
    )
    if verdict := _verdict(outcome):
        yield f"  {verdict}"
    if outcome.note:
        yield f"  {outcome.note}"
    yield from (f"  {difference.text}" for difference in outcome.differences[:MAX_SHOWN])
    if len(outcome.differences) > MAX_SHOWN:
        yield f"  ... and {len(outcome.differences) - MAX_SHOWN} more samples"
    if outcome.written:
        yield f"  {outcome.written}: {found.key}"


def _verdict(outcome: Outcome) -> str:
    match outcome.verdict:
        case Verdict.EQUAL:
            return f"equal, bit by bit: {outcome.compared_with}"
        case Verdict.NEAR:
            return f"within {TOLERANCE:g} (largest {outcome.largest_relative:.2g}): {outcome.compared_with}"
        case Verdict.DIFFERENT:
            return f"DIFFERENT in {_count(len(outcome.differences), 'sample')}: {outcome.compared_with}"
        case _:
            return "" if outcome.written else "not compared"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
