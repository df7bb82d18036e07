"""Drafts and confidences of the golden prompts, and greedy speculation (``golden/README.md``)."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from v41_driver import Driver, Proposal
from v41_golden import PROMPTS, sure
from v41_models import SHIPPED, cpu_backend, make_driver, manifest
from v41_recording import PatchedBackend, higher_ties
from v41_speculation import speculate_together

FP32 = ["plain", "kvq"]
BEHIND_A_FLIPPED_CODE = {"len127", "len200", "len600"}
"""Prompts in which a cache value lies at a rounding midpoint (kvq), so that confidences move by up to 1e-3."""


@functools.cache
def drafting(variant: str) -> Driver:
    ties = PatchedBackend(cpu_backend(), {"index.topk": higher_ties})
    return make_driver(SHIPPED, variant, backend=ties, draft_tokens=4)  # type: ignore[arg-type]


@functools.cache
def proposal(variant: str, prompt: str, chunk: int = 4096) -> Proposal:
    driver, ids = drafting(variant), PROMPTS[prompt]["ids"]
    sequence = driver.open(ids)
    driver.prefill(sequence, len(ids), chunk)
    got = driver.draft([PROMPTS[prompt][variant]["anchor"]])
    driver.close(sequence)
    return got


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("variant", FP32)
def test_drafts_and_confidences_are_golden(variant: str, prompt: str) -> None:
    want, got = PROMPTS[prompt][variant]["draft"], proposal(variant, prompt)
    count = sure(want["gaps"])
    assert got.tokens[0, :count].tolist() == want["tokens"][:count]
    near = 2e-3 if variant == "kvq" and prompt in BEHIND_A_FLIPPED_CODE else 1e-5
    expected = torch.tensor(want["confidences"][:count])
    torch.testing.assert_close(got.confidences[0, :count], expected, atol=near, rtol=0)


@pytest.mark.parametrize(
    ("prompt", "chunk"), [("len3", 1), ("len33", 7), ("len65", 33), pytest.param("len65", 1, marks=pytest.mark.slow)]
)
def test_chunks_of_a_prompt_leave_the_same_drafts(prompt: str, chunk: int) -> None:
    got, want = proposal("plain", prompt, chunk), proposal("plain", prompt)
    assert torch.equal(got.tokens, want.tokens)
    torch.testing.assert_close(got.confidences, want.confidences, atol=1e-5, rtol=0)


@pytest.mark.parametrize("variant", ["plain", pytest.param("kvq", marks=pytest.mark.slow)])
def test_greedy_speculation_is_golden(variant: str) -> None:
    """Tokens up to the first close step; tokens a step of all texts together within 0.05 of the stored figure."""
    texts, count = manifest()["texts"], 64
    runs = speculate_together(drafting(variant), [text["ids"] for text in texts], count)
    mine, stored = [0, 0], [0.0, 0]
    for text, run in zip(texts, runs, strict=True):
        want: dict[str, Any] = text[variant]
        golden, certain, steps = want["speculative"], sure(want["gaps"]), run.steps(count)
        assert run.tokens[:certain] == want["greedy"][:certain], text["id"]
        mine = [mine[0] + sum(run.accepted[:steps]) + steps, mine[1] + steps]
        stored = [stored[0] + golden["tokens_per_step"] * golden["steps"], stored[1] + golden["steps"]]
    assert abs(mine[0] / mine[1] - stored[0] / stored[1]) < 0.05
