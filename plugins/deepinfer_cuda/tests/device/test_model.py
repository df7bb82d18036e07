"""The model on the device: golden values by the limits of the golden files, in modes ``exact`` and ``released``."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "deepinfer_v41" / "tests"))

from dense_reference import DenseReference
from v41_golden import PROMPTS, check_exact_logits, sure
from v41_models import SHIPPED, golden, manifest, recorded, shipped_higher_ties
from v41_perplexity import first_tokens, row_nll, rows, weighted
from v41_speculation import speculate_together

pytestmark = pytest.mark.cuda
FP32 = ["plain", "kvq"]
MARGIN = 1e-4
SHORT = [p for p in PROMPTS if PROMPTS[p]["length"] <= 200]
SPREAD = "bf16, emulated FP8 activations"


@pytest.mark.parametrize("variant", FP32)
def test_exact_logits_are_golden(variant):
    driver = shipped_higher_ties(variant, "cuda")
    check_exact_logits(variant, lambda prompt: driver.all_logits(PROMPTS[prompt]["ids"]))


@pytest.mark.parametrize("prompt", ["len1", "len33", "len200", "len600"])
def test_rows_selections_and_experts_are_golden(prompt):
    """Engram rows equal; selections and experts wherever the stored margin is above 1e-4."""
    driver, recorder = recorded("plain", on="cuda")
    recorder.clear()
    driver.all_logits(PROMPTS[prompt]["ids"])
    assert torch.equal(recorder.hashes(), golden()[f"{prompt}.hashes"].long())
    assert torch.equal(recorder.experts(), golden()[f"plain.{prompt}.experts"].long())
    for layer in (2, 4, 6):
        want, mine = golden()[f"plain.{prompt}.topk.{layer}"].long(), recorder.selections()[f"topk.{layer}"].long()
        want = torch.nn.functional.pad(want, (0, mine.shape[1] - want.shape[1]), value=-1)
        margin = golden().get(f"plain.{prompt}.topk_margin.{layer}", torch.full((len(mine),), float("inf")))
        assert not ((mine != want).any(-1) & (margin > MARGIN)).any(), layer
    norms = recorder.stream_norms()
    torch.testing.assert_close(norms, golden()[f"plain.{prompt}.stream_norms"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", FP32)
def test_greedy_continuations_are_golden_up_to_the_first_close_step(variant):
    texts = manifest()["texts"]
    tokens, _ = shipped_higher_ties(variant, "cuda").greedy_batch([t["ids"] for t in texts], 64)
    for text, mine in zip(texts, tokens, strict=True):
        certain = sure(text[variant]["gaps"])
        assert mine[:certain] == text[variant]["greedy"][:certain], text["id"]


@pytest.mark.parametrize("prompt", ["len1", "len3", "len33", "len65", "len200"])
def test_drafts_and_confidences_are_golden(prompt):
    driver, ids, want = shipped_higher_ties("plain", "cuda", 4), PROMPTS[prompt]["ids"], PROMPTS[prompt]["plain"]
    sequence = driver.open(ids)
    driver.prefill(sequence, len(ids), 4096)
    got = driver.draft([want["anchor"]])
    driver.close(sequence)
    count = sure(want["draft"]["gaps"])
    assert got.tokens[0, :count].tolist() == want["draft"]["tokens"][:count]
    expected = torch.tensor(want["draft"]["confidences"][:count])
    torch.testing.assert_close(got.confidences[0, :count], expected, atol=1e-5, rtol=0)


def test_greedy_speculation_is_golden():
    texts = manifest()["texts"]
    runs = speculate_together(shipped_higher_ties("plain", "cuda", 4), [text["ids"] for text in texts], 64)
    for text, run in zip(texts, runs, strict=True):
        certain = sure(text["plain"]["gaps"])
        assert run.tokens[:certain] == text["plain"]["greedy"][:certain], text["id"]


@pytest.mark.parametrize("variant", FP32)
def test_first_rows_of_the_text_have_the_stored_perplexity(variant):
    got, want = row_nll(variant, rows()[:4], "cuda"), manifest()["perplexity"][variant]["row_nll"][:4]
    limit = 2e-3 if variant == "kvq" else 1e-4
    assert weighted(got, [511] * 4) == pytest.approx(weighted(want, [511] * 4), rel=limit)


@pytest.mark.parametrize("prompt", SHORT)
def test_released_logits_are_within_twice_the_spread(prompt):
    """BF16 streams and FP8 activations through the kernels, against the FP32 values of the oracle."""
    spread, ids = manifest()["spread_against_fp32_kvq"][SPREAD][prompt], PROMPTS[prompt]["ids"]
    oracle = DenseReference(SHIPPED, ties="higher", token_map=manifest()["engram"]["token_map"])
    want, got = oracle.run(ids).logits, shipped_higher_ties("released", "cuda").all_logits(ids)
    moved = float((got - want).abs().mean())
    print(f"{prompt}: mean_abs {moved / spread['mean_abs']:.2f} of the spread")
    assert moved < 2 * spread["mean_abs"]
    if PROMPTS[prompt]["length"] >= 31:
        kl = (want.softmax(-1) * (want.log_softmax(-1) - got.log_softmax(-1))).sum(-1)
        print(f"{prompt}: mean_kl {float(kl.mean()) / spread['mean_kl']:.2f} of the spread")
        assert float(kl.mean()) < 2 * spread["mean_kl"]


def test_released_perplexity_of_the_first_16384_tokens():
    got = first_tokens("released", 16384, "cuda")
    print(f"perplexity released: {got:.4f}")
    stored = manifest()["spread_against_fp32_kvq"][SPREAD]["perplexity of the first 16384 tokens"]
    assert abs(got - stored) < 0.05


@pytest.mark.parametrize("split", [1, 33, 64])
def test_decode_steps_continue_a_prefill(split):
    """Rows fed to decode steps have the logits of one prefill, up to the order of sums."""
    driver, ids = shipped_higher_ties("plain", "cuda"), PROMPTS["len127"]["ids"][:96]
    whole, parts = driver.all_logits(ids), driver.all_logits(ids, split=split)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-4)
