"""Main keys of the draft head where a sequence does not begin with its own prompt: copied slots, reused prefixes."""

from __future__ import annotations

import functools

import pytest
import torch
from dense_drafts import DraftReference
from dense_reference import Replay
from v41_driver import Driver
from v41_models import make_driver
from v41_tiny import prompt, tiny_path

K = 5


@functools.cache
def drafting(variant: str, block: int = 128) -> Driver:
    return make_driver(tiny_path(), variant, block_size=block, blocks=80, slots=20, draft_tokens=K)  # type: ignore[arg-type]


@pytest.mark.parametrize("accepted", [0, 3])
@pytest.mark.parametrize("variant", ["released", pytest.param("kvq", marks=pytest.mark.slow)])
def test_copy_of_a_slot_that_ran_on_gives_the_drafts_of_a_run_alone(variant: str, accepted: int) -> None:
    """A sample of the same prompt begins with the last row of it, over what the first sample has left (2.11)."""
    driver, length = drafting(variant), 41
    ids = prompt(length, seed=length)
    alone = driver.open([*ids, 5])
    driver.prefill(alone, length - 1, 4096)
    want_row = driver.run([(alone, 1)], prompt=False)
    want = driver.draft([5], [0])
    parent = driver.open([*ids, *prompt(K + 2, seed=3)[1:]])
    driver.prefill(parent, length, 4096)
    driver.draft([parent.tokens[length]])
    driver.run([(parent, K + 1)], prompt=False)
    driver.draft([7], [accepted])
    child = driver.open([*ids, 5])
    with torch.inference_mode():
        for pool, source, target in (
            ("swa", parent.swa_slot, child.swa_slot),
            ("state", parent.state_slot, child.state_slot),
        ):
            driver.caches.clone(pool, [(source, target)])
        driver.caches.clone("main", list(zip(parent.block_table, child.block_table, strict=False)))
    child.done = length - 1
    row = driver.run([(child, 1)], prompt=False)
    got = driver.draft([5], [0])
    driver.close(alone, parent, child)
    assert torch.equal(row, want_row)
    assert torch.equal(got.logits, want.logits)
    assert torch.equal(got.confidences, want.confidences)


@pytest.mark.parametrize("length", [33, 41])
def test_drafts_behind_a_reused_prefix_follow_the_plain_rule(length: int) -> None:
    """The last window of the prefix runs again with windows cut at its start, and stores main keys as it goes."""
    driver, hit = drafting("plain", block=16), 32
    ids = prompt(length, seed=length)
    start = hit - driver.geometry.window
    cold = driver.open(ids[:hit])
    driver.prefill(cold, hit, 4096)
    warm = driver.open(ids)
    own = warm.block_table
    warm.block_table = [*cold.block_table[:2], *own[2:]]
    warm.done = warm.swa_valid_start = start
    warm.store_from = hit
    driver.prefill(warm, length, 7)
    got = driver.draft([5])
    warm.block_table = own
    driver.close(cold, warm)
    oracle = DraftReference(tiny_path(), caches=False)
    block = oracle.propose(ids, 5, Replay(start, hit, oracle.run(ids[:hit])))
    previous = 5
    for k in range(K):
        logits, dot = oracle.step(block, k, previous)
        torch.testing.assert_close(got.logits[0, k], logits, atol=1e-4, rtol=0)
        torch.testing.assert_close(got.confidences[0, k], torch.sigmoid(dot), atol=1e-5, rtol=0)
        previous = int(got.tokens[0, k])
