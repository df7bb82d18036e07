"""Steps with drafts that may be recorded give what they give op by op (``interfaces.StaticDraftingSampler``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.part import not_offered
from deepinfer_core.conformance.sampler.drafted import Proposals, drafted_before, verifying_inputs, with_drafts
from deepinfer_core.conformance.sampler.steps import Bench
from deepinfer_core.interfaces import StaticDraftingSampler, StaticStep

pytestmark = pytest.mark.level("core")
VOCAB, DRAFTS, REQUESTS, SIZE = 12, 3, 3, 5
ROWS = DRAFTS + 1
OF_REQUESTS = ("sampled_ids", "sampled_logprob", "row_status", "accepted")
OF_ROWS = ("verified_ids", "verified_logprob", "draft_logprob")
OF_STEP = ("verified_per_step", "accepted_per_step")


def pair(bench: Any, mode: str) -> tuple[Bench, Bench]:
    """Two samplers of the plugin with drafts, and steps that may be recorded."""
    first, second = (with_drafts(bench, VOCAB, DRAFTS, mode) for _ in range(2))
    if not hasattr(first.sampler, "static_step"):
        not_offered("it has no static_step, which may be left out")
    require(isinstance(first.sampler, StaticDraftingSampler), "it has static_step and is no StaticDraftingSampler")
    return first, second


def require_same(got: Mapping[str, Any], wanted: Mapping[str, Any], **told: Any) -> None:
    for name, value in wanted.items():
        mine = got[name]
        equal = (mine is None) == (value is None) and (value is None or np.array_equal(mine, value))
        require(equal, f"{name} of a static step is not that of sample and draft", **told)


def results(bench: Bench, output: Any, rows: int) -> dict[str, Any]:
    """What a step of ``REQUESTS`` requests with ``rows`` rows has of a result, on the host."""
    ends = {**dict.fromkeys(OF_REQUESTS, REQUESTS), **dict.fromkeys(OF_ROWS, rows), **dict.fromkeys(OF_STEP, DRAFTS)}
    values = {name: bench.host(output, name) for name in ends}
    return {name: None if value is None else value[: ends[name]] for name, value in values.items()}


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_a_static_step_gives_what_sample_and_draft_give(bench: Any, mode: Any) -> None:
    """One object serves steps of any lengths; requests and rows behind those of a step are placeholders."""
    plain, static = pair(bench, mode)
    draw = np.random.default_rng(5)
    made: set[int] = set()
    drafter = draw.normal(size=(DRAFTS, VOCAB)).astype(np.float32)
    for one in (plain, static):
        drafted_before(one, drafter, drafter[0], REQUESTS, temperature=0.0)
    for counts in ([ROWS] * REQUESTS, [1, ROWS, 2], [3, 1, ROWS], [ROWS, 2, ROWS]):
        inputs = evolve(lengths_of(counts), stop_ids=draw.integers(-1, VOCAB, (REQUESTS, 2)).astype(np.int32))
        target = draw.normal(size=(SIZE * ROWS, VOCAB)).astype(np.float32)
        near = [drafter[min(j, DRAFTS - 1)] for count in counts for j in range(count)]
        keep = draw.random(len(near)) < 0.75
        target[: len(near)][keep] = np.asarray(near)[keep]
        step = static.sampler.static_step(inputs, SIZE)
        if step is None:
            not_offered("it takes no greedy step as a static one")
        require(isinstance(step, StaticStep), "static_step returned no StaticStep", got=type(step).__name__)
        made.add(id(step))
        wanted = plain.step(target[: len(near)], inputs)
        got = step.verify(static.device(target))
        require_same(results(static, got, len(near)), results(plain, wanted.output, len(near)), lengths=counts)
        drafter = draw.normal(size=(DRAFTS, VOCAB)).astype(np.float32)
        bound = inputs if getattr(plain.sampler, "host_inputs", False) else plain.backend.bind_inputs(inputs)
        alone = plain.sampler.draft(Proposals(plain, drafter, REQUESTS, wanted.tokens), bound, wanted.output, DRAFTS)
        first = static.host(got, "sampled_ids")
        together = step.draft(Proposals(static, drafter, SIZE, first), got)
        names = ("draft ids", "confidences")
        require_same(
            *(dict(zip(names, read(one, of), strict=True)) for one, of in ((static, together), (plain, alone)))
        )
    require_equal(len(made), 1, "static_step made another object for a step of the same size")


def lengths_of(counts: list[int]) -> Any:
    """Of a greedy step in which request i has ``counts[i]`` rows, all but the last of which verify a draft."""
    inputs = verifying_inputs(len(counts), DRAFTS, temperature=0.0)
    ends = np.cumsum(counts)
    offset = np.concatenate([np.arange(count) for count in counts])
    slot, last = np.repeat(inputs.draft_write_slot, counts), np.isin(np.arange(ends[-1]), ends - 1)
    return evolve(
        inputs,
        selected_rows=np.arange(ends[-1], dtype=np.int32),
        first_row=(ends - counts).astype(np.int32),
        row_count=np.asarray(counts, np.int32),
        draft_rows=np.where(last, 0, slot * DRAFTS + offset).astype(np.int32),
    )


def read(bench: Bench, drawn: Any) -> list[Any]:
    """Drafts and confidences of the requests of a step, on the host."""
    return [None if part is None else np.asarray(bench.backend.to_host(part))[:REQUESTS] for part in drawn]
