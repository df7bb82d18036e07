"""Greedy steps with drafts in memory that stays where it is: what they give is what `sample` and `draft` give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from samplers_drafting import Block, drafting_sampler, inputs_of

from deepinfer_contracts import SamplerOutput
from deepinfer_core.interfaces import StaticDraftingSampler, StaticStep
from deepinfer_samplers.canonical import CanonicalSampler
from deepinfer_samplers.static_steps import MOST_STOPS

V = 9
K = 3
SIZE = 5
OF_ROWS = ("verified_ids", "verified_logprob", "draft_logprob")
OF_REQUESTS = ("sampled_ids", "sampled_logprob", "row_status", "accepted")
OF_STEP = ("verified_per_step", "accepted_per_step")


def logits_of(draw: np.random.Generator, *shape: int) -> Any:
    """Few values, so that they are often equal; a row may hold NaN or nothing at all."""
    values = draw.integers(0, 3, (*shape, V)).astype(np.float32)
    broken = draw.random(shape)
    values[broken < 0.04] = -np.inf
    values[broken > 0.96, 2] = np.nan
    return torch.from_numpy(values)


def pool(sampler: CanonicalSampler) -> list[Any]:
    """All that a later step may read."""
    kept = sampler._proposer.pool  # type: ignore[union-attr]
    rows = (kept.slots + 1) * kept.num_draft
    return [part[:rows].tolist() for part in (kept.tokens, kept.logprobs, kept.confidence)]


@pytest.mark.parametrize("is_coupled", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_static_steps_give_what_sample_and_draft_give(seed: int, is_coupled: bool) -> None:
    """Requests with any number of rows, one without drafts, stop tokens, faults; one object for every step."""
    draw = np.random.default_rng(seed)
    plain, static = (drafting_sampler(V, K, SIZE, is_coupled=is_coupled) for _ in range(2))
    assert isinstance(static, StaticDraftingSampler)
    accepted, steps = 0, set()
    for turn in range(12):
        n = int(draw.integers(1, SIZE + 1))
        counts = draw.integers(1, K + 2, n)
        slots = draw.permutation(SIZE + 1)[:n]
        stops = draw.integers(-1, V, (n, int(draw.integers(0, 4)))).astype(np.int32)
        inputs = inputs_of(n, K, counts, slots=slots, temperature=0.0, stop_ids=stops)
        given = logits_of(draw, SIZE * (K + 1))
        for row, place in enumerate(inputs.draft_rows.tolist()):
            token = int(plain._proposer.pool.tokens[place])  # type: ignore[union-attr]
            if token >= 0 and draw.random() < 0.7:
                given[row, token] = 5.0
        blocks = logits_of(draw, K, SIZE), draw.random((K, SIZE)).astype(np.float32) if turn % 3 else None
        wanted = plain.sample(given[: counts.sum()], inputs)
        chances = None if blocks[1] is None else blocks[1][:, :n]
        ids, confidence = plain.draft(Block(blocks[0][:, :n], chances), inputs, wanted, K)
        step = static.static_step(inputs, SIZE)
        assert isinstance(step, StaticStep)
        steps.add(id(step))
        got = step.verify(given)
        for names, count in ((OF_ROWS, int(counts.sum())), (OF_REQUESTS, n), (OF_STEP, K)):
            for name in names:
                np.testing.assert_array_equal(getattr(got, name)[:count], getattr(wanted, name), f"{turn} {name}")
        assert float(got.confidence_error.sum()) == pytest.approx(wanted.confidence_error, abs=1e-5)
        drawn, chance = step.draft(Block(*blocks), got)
        np.testing.assert_array_equal(drawn[:n], ids)
        assert (chance is None) == (confidence is None)
        if chance is not None:
            np.testing.assert_array_equal(chance[:n], confidence)
        assert pool(static) == pool(plain)
        accepted += int(wanted.accepted.sum())
    assert accepted > 15
    assert len(steps) == 1


def test_the_memory_of_a_static_step_stays_where_it_is() -> None:
    """A graph that was recorded over it reads the values of the step that is loaded."""
    sampler = drafting_sampler(V, K, SIZE)
    step = sampler.static_step(inputs_of(2, K, [4, 4], temperature=0.0), SIZE)
    assert step is not None
    layout, writes = step._layout, step._writes
    sampler.static_step(inputs_of(3, K, [1, 4, 2], slots=[5, 1, 0], temperature=0.0), SIZE)
    for name in ("first", "at", "inside", "request", "offset", "places", "verifies"):
        before, now = getattr(layout, name), getattr(step._layout, name)
        assert before.data_ptr() == now.data_ptr()
        assert before.tolist() == now.tolist()
    assert writes.tolist() == [[15, 16, 17], [3, 4, 5], *[[18, 19, 20]] * 3]
    assert layout.first.tolist() == [0, 1, 5, 7, 8]
    assert layout.verifies.tolist() == [False, True, True, True, *[False] * 16]


def test_a_step_is_loaded_where_only_stop_tokens_are_others() -> None:
    """What is loaded already is not copied again; every part of it counts."""
    sampler = drafting_sampler(V, K, SIZE)
    found = []
    for stop in (8, 2):
        inputs = inputs_of(1, K, [4], temperature=0.0, stop_ids=np.array([[stop]], np.int32))
        step = sampler.static_step(inputs, SIZE)
        assert step is not None
        got = step.verify(torch.eye(V)[2].repeat(SIZE * (K + 1), 1))
        assert got.sampled_ids[0] == 2
        block = Block(torch.eye(V)[:K].unsqueeze(1).repeat(1, SIZE, 1), np.full((K, SIZE), 0.5, np.float32))
        found.append(step.draft(block, got)[1][0].tolist())
    assert found == [[0.5] * K, [0.0] * K]


@pytest.mark.parametrize("given", [
    {"temperature": [0.0, 0.5]}, {"forced": [-1] * 7 + [3]}, {"eos_suppress": [[1, 2]]}, {"logprobs_raw": [0, 1]},
    {"bias": [[1, 2]], "bias_value": [3.0]}, {"top_logprobs": [0, 2], "max_top_logprobs": 2},
    {"presence_penalty": [0.0, 0.5], "row_slot": [0, 1]}, {"stop_ids": np.zeros((2, MOST_STOPS + 1), np.int32)},
], ids=lambda given: next(iter(given)))  # fmt: skip
def test_steps_that_ask_for_more_are_no_static_ones(given: dict[str, Any]) -> None:
    sampler = drafting_sampler(V, K, SIZE)
    inputs = inputs_of(2, K, [4, 4], **{"temperature": 0.0, **given})
    for name, value in given.items():
        if getattr(inputs, name, None) is None:
            setattr(inputs, name, np.asarray(value))
    assert sampler.static_step(inputs, SIZE) is None
    assert sampler.static_step(inputs_of(2, K, [4, 4], temperature=0.0), SIZE) is not None


def test_a_sampler_without_drafts_has_no_static_steps_with_drafts() -> None:
    assert CanonicalSampler(V).static_step(inputs_of(2, K, temperature=0.0), SIZE) is None


def test_drafts_of_placeholders_leave_no_trace() -> None:
    sampler = drafting_sampler(V, K, SIZE)
    before = pool(sampler)
    step = sampler.static_step(inputs_of(1, K, [1], slots=[0], temperature=0.0), SIZE)
    assert step is not None
    got: SamplerOutput = step.verify(torch.eye(V).repeat(3, 1)[: SIZE * (K + 1)])
    step.draft(Block(torch.eye(V)[:K].unsqueeze(1).repeat(1, SIZE, 1)), got)
    assert pool(sampler) == before
