"""The oracle itself, against the golden values (``golden/README.md``)."""

from __future__ import annotations

import functools

import pytest
import torch
from dense_reference import DenseReference, Trace
from v41_models import SHIPPED, golden, manifest

PROMPTS = [p["id"] for p in manifest()["prompts"]]


@functools.cache
def oracle(variant: str, ties: str) -> DenseReference:
    return DenseReference(SHIPPED, caches=variant == "kvq", ties=ties, token_map=manifest()["engram"]["token_map"])


@functools.cache
def run(variant: str, ties: str, prompt: str) -> Trace:
    ids = next(p["ids"] for p in manifest()["prompts"] if p["id"] == prompt)
    return oracle(variant, ties).run(ids)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_plain_run_equals_golden_everywhere(prompt):
    got, want = run("plain", "lower", prompt), golden()
    ids = want[f"plain.{prompt}.top_ids"].long()
    top = got.logits.log_softmax(-1).gather(1, ids)
    torch.testing.assert_close(top, want[f"plain.{prompt}.top_logprobs"], atol=1e-4, rtol=0)
    assert torch.equal(got.hashes, want[f"{prompt}.hashes"].long())
    assert torch.equal(torch.stack(got.experts), want[f"plain.{prompt}.experts"].long())


@pytest.mark.parametrize("prompt", PROMPTS)
def test_kvq_run_with_golden_ties_equals_golden_but_for_the_named_rows(prompt):
    got, want = run("kvq", "higher", prompt), golden()
    differs = {}
    for layer, mine in got.topk.items():
        theirs = want[f"kvq.{prompt}.topk.{layer}"].long()
        theirs = torch.nn.functional.pad(theirs, (0, mine.shape[1] - theirs.shape[1]), value=-1)
        differs[layer] = (mine != theirs).any(-1).nonzero().flatten().tolist()
    named = {2: [], 4: [553], 6: [550, 565]} if prompt == "len600" else {2: [], 4: [], 6: []}
    assert differs == named


def test_tie_rule_changes_the_tied_rows_only():
    lower, higher = run("kvq", "lower", "len600"), run("kvq", "higher", "len600")
    rows = (lower.topk[2] != higher.topk[2]).any(-1).nonzero().flatten().tolist()
    assert rows == [63, 85, 263, 287]
    assert [float(lower.topk_margin[2][p]) for p in rows] == [0.0] * 4
