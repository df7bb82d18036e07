"""Bias and penalties: what changes logits before masks and filters (``spec/sampling.md`` 2.2, steps 4 and 5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import require_equal
from deepinfer_core.conformance.reference.sampling import distribution, penalised, ranking
from deepinfer_core.conformance.sampler.steps import random_logits, step_inputs
from deepinfer_core.conformance.statistics import require_distribution

pytestmark = pytest.mark.level("core")
VOCAB = 40


def history(*requests: tuple[list[int], list[int]]) -> dict[str, list[int]]:
    """(prompt, output) of each request, as the core packs them for its first sampled step; empty: nothing new."""
    return {
        "history_ids": [token for prompt, output in requests for token in [*prompt, *output]],
        "history_counts": [len(prompt) + len(output) for prompt, output in requests],
        "history_outputs": [len(output) for _, output in requests],
    }


def test_bias_is_added_to_its_row_and_token(bench: Any) -> None:
    logits = np.zeros((3, VOCAB), np.float32)
    logits[:, 7] = 1.0
    pairs = np.array([[0, 35], [2, 7], [2, 3]], np.int32)
    inputs = step_inputs(3, temperature=0.0, bias=pairs, bias_value=[2.0, -5.0, 0.5])
    require_equal(bench(VOCAB).step(logits, inputs).tokens.tolist(), [35, 7, 3], "a bias has a wrong effect")


def test_bias_changes_the_distribution_by_its_value(bench: Any) -> None:
    made, n, row = bench(6), 256, [0.0, 0.5, 1.0, -0.5, 0.2, -1.0]
    pairs = np.array([[i, token] for i in range(n) for token in (0, 3)], np.int32)
    tokens: list[int] = []
    for first in range(0, 4096, n):
        inputs = step_inputs(n, seed=np.arange(first, first + n), bias=pairs, bias_value=[1.2, 2.0] * n)
        tokens += made.step(np.tile(np.asarray(row, np.float32), (n, 1)), inputs).tokens.tolist()
    biased = [row[0] + 1.2, *row[1:3], row[3] + 2.0, *row[4:]]
    require_distribution(tokens, distribution(biased), "with a bias")


@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition": 1.7},
        {"repetition": 0.6},
        {"presence": 1.5},
        {"frequency": 0.8},
        {"presence": -1.0, "frequency": -0.5},
        {"repetition": 1.3, "presence": 0.4, "frequency": 0.3},
    ],
    ids=lambda case: "-".join(f"{k}{v}" for k, v in case.items()),
)
def test_penalties_count_prompt_and_output(bench: Any, penalties: Any) -> None:
    """Four steps of a request: what it emits counts from the next step on."""
    made, rng = bench(VOCAB), np.random.default_rng(11)
    prompt, output = rng.integers(0, VOCAB, 30).tolist(), rng.integers(0, VOCAB, 6).tolist()
    parameters = {f"{name}_penalty": value for name, value in penalties.items()}
    for step in range(4):
        logits = rng.normal(0, 1.0, (1, VOCAB)).astype(np.float32)
        first = history((prompt, output)) if step == 0 else {}
        out = made.step(logits, step_inputs(1, temperature=0.0, sample_pos=36 + step, **parameters, **first))
        want = ranking(penalised(logits[0].tolist(), prompt, output, **penalties))[0]
        require_equal(out.tokens.tolist(), [want], "a penalty has a wrong effect", step=step, penalties=penalties)
        output.append(want)


def test_histories_belong_to_the_row_slot_of_a_request(bench: Any) -> None:
    """Requests change their place in the step, and one slot gets a new request."""
    made, rng = bench(VOCAB), np.random.default_rng(12)
    texts: dict[int, tuple[list[int], list[int]]] = {
        slot: (rng.integers(0, VOCAB, 20).tolist(), rng.integers(0, VOCAB, 4).tolist()) for slot in range(4)
    }
    order = [0, 1, 2, 3]
    for step in range(4):
        logits = rng.normal(0, 1.0, (4, VOCAB)).astype(np.float32)
        if step == 2:
            texts[1] = (rng.integers(0, VOCAB, 9).tolist(), [])
        fresh = [texts[slot] if step == 0 or (step == 2 and slot == 1) else ([], []) for slot in order]
        given = history(*fresh) if any(prompt for prompt, _ in fresh) else {}
        inputs = step_inputs(
            4,
            temperature=0.0,
            repetition_penalty=1.5,
            frequency_penalty=0.7,
            row_slot=[*order],
            **given,
        )
        got = made.step(logits, inputs).tokens.tolist()
        for place, slot in enumerate(order):
            prompt, output = texts[slot]
            want = ranking(penalised(logits[place].tolist(), prompt, output, repetition=1.5, frequency=0.7))[0]
            require_equal(got[place], want, "the history of another request was counted", step=step, slot=slot)
            output.append(want)
        order = order[1:] + order[:1]


def test_penalties_of_one_request_leave_the_others_alone(bench: Any) -> None:
    made = bench(VOCAB)
    logits = random_logits(3, VOCAB, seed=9)
    best = logits.argmax(1).tolist()
    inputs = step_inputs(
        3,
        temperature=0.0,
        presence_penalty=np.array([0.0, 2.0, 0.0]),
        frequency_penalty=np.array([0.0, 2.0, 0.0]),
        **history(([], []), ([1], [best[1]] * 50), ([], [])),
    )
    got = made.step(logits, inputs).tokens.tolist()
    require_equal([got[0], got[2]], [best[0], best[2]], "a penalty changed another request")
    require_equal(got[1] == best[1], False, "a penalty of 100 had no effect")
