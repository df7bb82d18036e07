"""What the draft head computes, and for whom (``spec/model.md`` 2.11, 7.25, 7.26, section 6)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_drafts import DraftReference
from torch import Tensor
from v41_driver import Driver, Proposal
from v41_equal_draft import equal_to_the_model
from v41_models import make_driver
from v41_speculation import speculate
from v41_tiny import edited, prompt, tiny_path

from deepinfer_core.errors import ModelError
from deepinfer_v41 import draft_block

K = 5
LAST = "mtp.2"


def draft_path(**overrides: Any) -> Path:
    """A random checkpoint whose draft stages route to more experts than its layers."""
    return tiny_path(dspark_num_experts_per_tok=3, **overrides)


@functools.cache
def drafting(variant: str = "plain", path: Any = None, temperatures: tuple[float, ...] = (1.0,)) -> Driver:
    where = path or draft_path()
    return make_driver(where, variant, blocks=80, slots=40, draft_tokens=K, temperatures=temperatures)  # type: ignore[arg-type]


def proposals(driver: Driver, prompts: Sequence[Sequence[int]], tokens: Sequence[int]) -> list[Proposal]:
    """Of the prompts in one prefill step, then of a decode step over two rows each, the second a rejected draft."""
    sequences = [driver.open([*ids, token, 9]) for ids, token in zip(prompts, tokens, strict=True)]
    driver.run([(s, len(ids)) for s, ids in zip(sequences, prompts, strict=True)], prompt=True)
    first = driver.draft(tokens)
    driver.run([(s, 2) for s in sequences], prompt=False)
    kept = [len(ids) % 2 for ids in prompts]
    second = driver.draft([token + 1 for token in tokens], kept)
    driver.close(*sequences)
    return [first, second]


@pytest.mark.parametrize(
    ("variant", "length"), [*(("plain", n) for n in (1, 2, 15, 16, 17, 60)), ("kvq", 1), ("kvq", 2)]
)
def test_drafts_equal_those_of_the_dense_oracle(variant: str, length: int) -> None:
    """In the cache formats only texts so short that no value lies at a rounding midpoint."""
    oracle = DraftReference(draft_path(), caches=variant == "kvq")
    ids = prompt(length, seed=length)
    (got, _) = proposals(drafting(variant), [ids], [77])
    block, previous = oracle.propose(ids, 77), 77
    for k in range(K):
        logits, dot = oracle.step(block, k, previous)
        torch.testing.assert_close(got.logits[0, k], logits, atol=1e-4, rtol=0)
        torch.testing.assert_close(got.confidences[0, k], torch.sigmoid(dot), atol=1e-5, rtol=0)
        previous = int(got.tokens[0, k])


@pytest.mark.parametrize("count", [2, 8, pytest.param(33, marks=pytest.mark.slow)])
@pytest.mark.parametrize("variant", ["released", pytest.param("kvq", marks=pytest.mark.slow)])
def test_drafts_are_the_same_alone_and_in_any_batch(variant: str, count: int) -> None:
    driver = drafting(variant)
    prompts = [prompt(3 + 7 * i % 40, seed=i) for i in range(count)]
    tokens = [20 + i for i in range(count)]
    together = proposals(driver, prompts, tokens)
    for i in {0, 1, count - 1}:
        alone = proposals(driver, prompts[i : i + 1], tokens[i : i + 1])
        for mine, all_ in zip(alone, together, strict=True):
            assert torch.equal(mine.logits[0], all_.logits[i])
            assert torch.equal(mine.confidences[0], all_.confidences[i])


def test_fewer_drafts_are_the_first_of_the_block() -> None:
    ids = prompt(40, seed=2)
    two = make_driver(draft_path(), "released", draft_tokens=2)
    (few, _), (all_, _) = proposals(two, [ids], [5]), proposals(drafting("released"), [ids], [5])
    assert torch.equal(few.logits[0], all_.logits[0, :2])
    assert torch.equal(few.confidences[0], all_.confidences[0, :2])
    with pytest.raises(ModelError, match="draft 2 was asked for, and 2 were proposed"):
        two.draft([5], [0], count=3)


def test_drafts_depend_on_the_window_and_the_token_only() -> None:
    """Two sequences whose main keys agree in the window: the older ones, the blocks and the states may be anything."""
    driver, ids = drafting("released"), prompt(60, seed=3)
    s = driver.open(ids)
    driver.run([(s, 60)], prompt=True)
    want = driver.draft([5])
    g = driver.geometry
    window = [p % g.swa_ring for p in range(60 - g.window, 60)]
    with torch.inference_mode():
        driver.caches._matrix("main").fill_(0xFF)
        driver.caches._matrix("state").fill_(0xFF)
        for layer in range(15):
            ring = driver.caches.view("swa", layer).tensor[s.swa_slot]
            if layer < 12:
                ring.fill_(0xFF)
            else:
                ring[[slot for slot in range(g.swa_ring) if slot not in window]] = 0xFF
    got, other = driver.draft([5]), driver.draft([6])
    with torch.inference_mode():
        for pool in ("main", "state", "swa"):
            driver.caches._matrix(pool).zero_()
    driver.close(s)
    assert torch.equal(got.logits, want.logits)
    assert torch.equal(got.confidences, want.confidences)
    assert not torch.equal(other.logits, want.logits)


def test_logits_made_one_draft_at_a_time_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, ids = drafting("released"), [prompt(20, seed=10), prompt(9, seed=11)]
    together = proposals(driver, ids, [5, 6])
    monkeypatch.setattr(draft_block, "VALUES_AT_ONCE", 0)
    one_by_one = proposals(driver, ids, [5, 6])
    assert all(torch.equal(a.logits, b.logits) for a, b in zip(together, one_by_one, strict=True))


def test_unquantised_checkpoint_drafts_like_its_oracle() -> None:
    path, ids = draft_path(quantization_config="null"), prompt(30, seed=12)
    (got, _) = proposals(drafting("plain", path), [ids], [77])
    oracle = DraftReference(path, caches=False)
    logits, dot = oracle.step(oracle.propose(ids, 77), 0, 77)
    torch.testing.assert_close(got.logits[0, 0], logits, atol=1e-4, rtol=0)
    torch.testing.assert_close(got.confidences[0, 0], torch.sigmoid(dot), atol=1e-5, rtol=0)


def zero(*names: str) -> Any:
    def edit(tensors: dict[str, Tensor]) -> None:
        for name in names:
            tensors[name].view(torch.uint8).zero_()

    return edit


def test_without_markov_term_a_draft_does_not_depend_on_the_one_before() -> None:
    ids = prompt(20, seed=4)
    driver = drafting("plain", edited(draft_path(), zero(f"{LAST}.markov_head.head.weight")))
    s = driver.open(ids)
    driver.run([(s, 20)], prompt=True)
    block = driver.model.draft(None, driver.inputs, torch.tensor([5]), None, driver.caches)
    logits = [block.step(1, torch.tensor([token]))[0] for token in (3, 300)]
    driver.close(s)
    assert torch.equal(*logits)
    assert torch.equal(block.step(0, torch.tensor([5]))[0], block.base(0))


@pytest.mark.parametrize("temperatures", [(2.0,), (1.0, 0.5, 2.0, 4.0, 0.25)])
def test_temperatures_divide_the_confidence_logits(temperatures: tuple[float, ...]) -> None:
    ids = prompt(20, seed=5)
    (plain, _), (warm, _) = (
        proposals(drafting(), [ids], [5]),
        proposals(drafting("plain", None, temperatures), [ids], [5]),
    )
    want = torch.sigmoid(torch.logit(plain.confidences.double()) / torch.tensor(temperatures, dtype=torch.float64))
    torch.testing.assert_close(warm.confidences.double(), want, atol=1e-5, rtol=0)
    assert torch.equal(warm.logits, plain.logits)
    assert ((warm.confidences > 0) & (warm.confidences < 1)).all()


@pytest.mark.parametrize("temperature", [1e-30, 1e30])
def test_scaled_dot_is_clamped(temperature: float) -> None:
    (got, _) = proposals(drafting("plain", None, (temperature,)), [prompt(20, seed=6)], [5])
    edges = torch.sigmoid(torch.tensor([-60.0, 0.0, 60.0]))
    assert torch.isfinite(got.confidences).all()
    assert all(any(torch.isclose(x, edge, atol=1e-12) for edge in edges) for x in got.confidences.flatten())


def test_request_that_is_not_finite_gets_no_confidence_and_spoils_no_other() -> None:
    driver, prompts = drafting("released"), [prompt(20, seed=7), prompt(30, seed=8)]
    sequences = [driver.open(ids) for ids in prompts]
    driver.run([(s, len(s.tokens)) for s in sequences], prompt=True)
    want = driver.draft([5, 6])
    with torch.inference_mode():
        driver.caches.view("swa", 13).tensor[sequences[0].swa_slot].fill_(0xFF)  # NaN, as everything made of it
    got = driver.draft([-1, 6])
    with torch.inference_mode():
        driver.caches._matrix("swa").zero_()
    driver.close(*sequences)
    assert torch.isnan(got.logits[0]).any()
    assert got.confidences[0].tolist() == [0.0] * K
    assert torch.equal(got.logits[1], want.logits[1])
    assert torch.equal(got.confidences[1], want.confidences[1])


@pytest.mark.parametrize("variant", ["released", "plain"])
def test_draft_that_equals_the_model_is_accepted_whole(variant: str) -> None:
    path = edited(draft_path(dspark_markov_rank=128), equal_to_the_model)
    run = speculate(drafting(variant, path), prompt(20, seed=9), 30)
    assert run.accepted == [K] * len(run.accepted) == [K] * 5
