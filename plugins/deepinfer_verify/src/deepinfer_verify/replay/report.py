"""What a level found, for a reader and as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deepinfer_verify.replay.findings import Findings
from deepinfer_verify.replay.level1 import suites
from deepinfer_verify.replay.level2 import CHUNK, Level2

MAX_SHOWN = 12
"""Differences that are shown; the others are counted."""


def level1_lines(findings: Findings) -> Iterator[str]:
    yield f"level 1: {findings.cases:,} prompts of made-up tokens through scheduler and packer, without weights"
    for suite in suites():
        g = suite.geometry
        yield f"  {suite.name} sizes: window {g.window}, keep {g.keep}, blocks of {g.block}, {suite.drafts} drafts"
        lengths = f"lengths: {len(suite.lengths)}, from {min(suite.lengths)} to {max(suite.lengths)} tokens"
        yield f"    {lengths}; chunks of {_list(suite.chunks)}; shared beginnings of {_list(suite.shared)}"
    yield from _compared(findings)


def level2_lines(result: Level2) -> Iterator[str]:
    if (sizes := result.sizes) is None:
        return
    g = sizes.geometry
    backend = f"{result.backend}, emulated" if result.emulated else result.backend
    yield f"level 2: bits of modes, chunks of {CHUNK} and prefix hits beside each other, backend {backend}"
    yield f"  window {g.window}, keep {g.keep}, blocks of {g.block}"
    yield f"  prompts of {_list(sizes.lengths)} tokens; {sizes.new_tokens} forced tokens behind each"
    yield from _compared(result.findings)
    if result.left_out:
        yield f"  not compared: {result.left_out}"
    for length, off, compact in result.costs:
        yield f"  not compared, for information: {length} tokens, perplexity {off:.4f} off, {compact:.4f} compact"


def level1_record(findings: Findings) -> dict[str, Any]:
    return {"level": 1, **findings.as_record()}


def level2_record(result: Level2) -> dict[str, Any]:
    costs = [
        {"tokens": length, "perplexity_off": off, "perplexity_compact": compact}
        for length, off, compact in result.costs
    ]
    return {
        "level": 2,
        "backend": result.backend,
        **({"emulated": True} if result.emulated else {}),
        **result.findings.as_record(),
        "costs": costs,
        "left_out": result.left_out or None,
    }


def _compared(findings: Findings) -> Iterator[str]:
    for kind, count in sorted(findings.compared.items()):
        different = findings.different[kind]
        yield f"  {kind:18} {count:>9,} compared" + (f", {different:,} DIFFERENT" if different else "")
    if not findings.count:
        yield "  no difference"
        return
    yield f"  {findings.count:,} differences"
    yield from (f"  {finding.text}" for finding in findings.kept[:MAX_SHOWN])
    if findings.count > MAX_SHOWN:
        yield f"  ... and {findings.count - MAX_SHOWN:,} more"


def _list(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
