"""Chunked prefill, and decode taking over at every position, against one prefill and the golden values.

The native core makes the steps; one test checks that the plain packer leads to the same logits.
"""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor
from v41_core_driver import Forced, run_forced
from v41_models import cpu_backend, golden, manifest, shipped, shipped_higher_ties

PROMPTS = {p["id"]: p["ids"] for p in manifest()["prompts"]}
VARIANTS = ["plain", "kvq", "released"]
BATCH = 24


@functools.cache
def one_shot(variant: str, prompt: str) -> Tensor:
    return shipped(variant).all_logits(PROMPTS[prompt])


def check_rows(got: Tensor, want: Tensor, variant: str) -> None:
    """Bit for bit where the backend claims batch invariance, else to FP32 noise.

    Without that claim a cache code may flip, and rows behind it move further (``golden/README.md``).
    """
    if cpu_backend().capabilities.determinism["batch_invariant"]:
        if not torch.equal(got, want):
            raise AssertionError(f"rows differ by up to {(got - want).abs().max():.2e}")
        return
    distance = (got.log_softmax(-1) - want.log_softmax(-1)).abs().amax(-1)
    if variant == "plain":
        torch.testing.assert_close(got, want, atol=2e-4, rtol=0)
    elif float(distance.median()) > 1e-3 or float((distance > 0.5).float().mean()) > 0.02:
        raise AssertionError(f"rows differ: median {distance.median():.2e}, largest {distance.max():.2e}")


def check_splits(variant: str, prompt: str, splits: list[int], follow: int) -> None:
    """Prefill the first tokens and feed up to ``follow`` more to decode steps; many splits run in one batch."""
    ids, want = PROMPTS[prompt], one_shot(variant, prompt)
    for first in range(0, len(splits), BATCH):
        work = [Forced(ids[:n], ids[n : n + follow]) for n in splits[first : first + BATCH]]
        for got in run_forced(shipped(variant), work):
            check_rows(got, want[: len(got)], variant)


@pytest.mark.parametrize(("prompt", "chunk"), [("len33", 1), ("len65", 3), ("len200", 32), ("len600", 4096)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_chunk_size_does_not_change_the_logits(variant, prompt, chunk):
    got = run_forced(shipped(variant), [Forced(PROMPTS[prompt])], chunk=chunk)[0]
    check_rows(got, one_shot(variant, prompt), variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_both_packers_lead_to_the_same_logits(variant):
    ids = PROMPTS["len65"]
    by_core = run_forced(shipped(variant), [Forced(ids[:50], ids[50:])], chunk=7)[0]
    assert torch.equal(by_core, shipped(variant).all_logits(ids, chunk=7, split=50))


@pytest.mark.parametrize("variant", ["plain", "kvq"])
def test_chunks_of_32_have_golden_logprobs(variant):
    driver, distances = shipped_higher_ties(variant), []
    logits = run_forced(driver, [Forced(ids) for ids in PROMPTS.values()], chunk=32)
    for prompt, rows in zip(PROMPTS, logits, strict=True):
        top = rows.log_softmax(-1).gather(1, golden()[f"{variant}.{prompt}.top_ids"].long())
        distances.append((top - golden()[f"{variant}.{prompt}.top_logprobs"]).abs().amax(-1))
    assert float(torch.cat(distances).median()) < 1e-4


@pytest.mark.parametrize(("prompt", "follow"), [("len2", 1), ("len3", 2), ("len33", 32), ("len65", 2)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_decode_takes_over_at_every_split(variant, prompt, follow):
    check_splits(variant, prompt, list(range(1, len(PROMPTS[prompt]))), follow)


@pytest.mark.parametrize("prompt", [pytest.param("len127", marks=pytest.mark.slow), "len200", "len600"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_decode_takes_over_at_sampled_splits_of_a_long_prompt(variant, prompt):
    n = len(PROMPTS[prompt])
    check_splits(variant, prompt, [1, 32, 37, n // 3, n // 2, n - 1], follow=2)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("prompt", list(PROMPTS)[1:])
@pytest.mark.parametrize("variant", VARIANTS)
def test_decode_takes_over_at_every_split_of_every_prompt(variant, prompt):
    check_splits(variant, prompt, list(range(1, len(PROMPTS[prompt]))), follow=8)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chunk", [1, 3, 32, 4096])
@pytest.mark.parametrize("prompt", list(PROMPTS))
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_chunk_size_of_every_prompt(variant, prompt, chunk):
    check_rows(
        run_forced(shipped(variant), [Forced(PROMPTS[prompt])], chunk=chunk)[0], one_shot(variant, prompt), variant
    )
