"""Level 1: many prompts through scheduler and packer, every row beside the rule. No weights, no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve, frozen

from deepinfer_contracts import StepKind
from deepinfer_verify.replay.beside import Beside, Caches, StepRow
from deepinfer_verify.replay.core_run import CoreRun, Request, fork, tokens_of
from deepinfer_verify.replay.decode_arrays import read_decode
from deepinfer_verify.replay.findings import Findings
from deepinfer_verify.replay.prefill_arrays import read_prefill
from deepinfer_verify.replay.rule import MODES, Geometry, Mode, Prompt, hit_of


@frozen
class Suite:
    """Sizes, and the prompts that run with them."""

    name: str
    geometry: Geometry
    drafts: int
    lengths: tuple[int, ...]
    chunks: tuple[int, ...]
    shared: tuple[int, ...]
    """Tokens that a prompt has in common with one that ran before."""


def suites() -> Iterator[Suite]:
    """Small sizes, where every length is tried, and the released model's."""
    small = Geometry(window=8, keep=14, block=4, ring=11, ratios=(1, 2))
    yield Suite(
        "small",
        small,
        drafts=2,
        lengths=(*range(1, 48), 61, 64, 77),
        chunks=(1, 2, 3, 5, 8, 13, 32, 96),
        shared=(3, 4, 7, 8, 9, 12, 13, 17, 24, 31, 40),
    )
    yield Suite(
        "exact hits, small",
        evolve(small, exact=(22, 15)),
        drafts=2,
        lengths=(15,),
        chunks=(1, 3, 8, 96),
        shared=(15, 16, 22, 23, 24, 28, 31, 40, 57),
    )
    released = Geometry(window=128, keep=140, block=128, ring=134, ratios=(1, 2))
    yield Suite(
        "released",
        released,
        drafts=5,
        lengths=(1, 127, 128, 129, 139, 140, 141, 255, 268, 269, 300, 409),
        chunks=(61, 128, 200, 1024),
        shared=(128, 200, 256, 300, 384),
    )


class Reader:
    """Looks at every step of a core."""

    def __init__(self, geometry: Geometry, engine: Mode, run: CoreRun, findings: Findings) -> None:
        config = run.config
        self._engine = engine
        self._beside = Beside(geometry, config.ratios_dense, findings)
        self._caches = Caches.of(geometry, config.num_swa_slots, config.num_blocks)

    def visit(self, step: Any, inputs: Any, requests: Mapping[int, Request]) -> None:
        """Before the step is committed."""
        rows = [StepRow(i, requests[uid], step) for i, uid in enumerate(step.seq_uid.tolist())]
        if step.kind == StepKind.DECODE:
            read_decode(rows, inputs, self._caches, self._beside)
        else:
            read_prefill(rows, inputs, self._engine, self._caches, self._beside)


def run_level1() -> Findings:
    """Everything: seconds."""
    findings = Findings()
    for suite in suites():
        for engine in MODES:
            for chunk in suite.chunks:
                findings.add(run_suite(suite, engine, chunk))
    return findings


def run_suite(suite: Suite, engine: Mode, chunk: int) -> Findings:
    """One core: cold prompts of all lengths, then prompts that find a part of a longer one in the prefix cache."""
    findings = Findings()
    longest = max(suite.lengths) + max(suite.shared)
    run = CoreRun(suite.geometry, engine, chunk=chunk, drafts=suite.drafts, longest=longest)
    try:
        reader = Reader(suite.geometry, engine, run, findings)
        modes = MODES[: MODES.index(engine) + 1]
        named = f"{suite.name} sizes, engine {engine}, chunks of {chunk}"
        for at, length in enumerate(suite.lengths):  # modes in turn, so that a step has rows of several
            turn = at % len(modes)
            for mode in (*modes[turn:], *modes[:turn]):
                case = f"{named}: {mode}, {length} tokens, cold"
                run.submit(Request(case, Prompt(length, mode), tokens_of(length, seed=at)), lookup=False)
                findings.cases += 1
        run.run(reader.visit)
        seed = len(suite.lengths)
        prefix = tokens_of(longest, seed)
        run.submit(Request(f"{named}: first", Prompt(longest, "off"), list(prefix)), lookup=False)
        run.run(reader.visit)
        for shared in suite.shared:
            for mode in modes:
                for more in (1, suite.geometry.window // 2, suite.geometry.keep + 3):
                    length = shared + more
                    start, hit = hit_of(shared, length, mode, suite.geometry)
                    case = f"{named}: {mode}, {length} tokens, {shared} of them cached"
                    seed += 1  # tails of their own, or they would find each other
                    tokens = fork(shared, length, seed, prefix)
                    run.submit(Request(case, Prompt(length, mode, start, hit), tokens), lookup=True)
                    findings.cases += 1
        run.run(reader.visit)
    finally:
        run.close()
    return findings
