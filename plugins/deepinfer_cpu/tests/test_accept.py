"""``sample.verify``: the distribution of its tokens, the prefix rule, forced tokens, stops (2.7)."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from deepinfer_core.errors import ShapeContractError
from deepinfer_cpu.ops.accept import verify

N = 20_000
Q = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
BONUS = torch.tensor([0.1, 0.1, 0.2, 0.2, 0.4])
DRAFTERS = [Q, torch.full((5,), 0.2), Q.flip(0), torch.tensor([0, 0, 0, 0, 1.0])]


def params_of(counts, *, temperature=1.0, position=5):
    """Of requests with so many rows each; request i has seed i."""
    counts = torch.as_tensor(counts)
    first = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
    rows = int(first[-1])
    owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
    offset = torch.arange(rows) - first[:-1][owner]
    return SimpleNamespace(
        temperature=torch.full((rows,), temperature),
        top_p=torch.ones(rows),
        top_k=torch.full((rows,), -1),
        min_p=None,
        seeds=owner.clone(),
        positions=position + offset,
        first_row=first,
    )


def drafted(p, *, mode):
    """One draft of each of N requests, drawn from ``p`` by an unrelated generator, or with the coupled noise."""
    one = params_of([1] * N)
    if mode == "coupled":
        return verify(p.log().expand(N, 5), one, None, mode="coupled")["sampled_ids"].long()
    return torch.multinomial(p, N, replacement=True, generator=torch.Generator().manual_seed(5))


def check(tokens, expected):
    counts = torch.bincount(tokens.long(), minlength=5).double()
    live = expected > 0
    expected = expected.double() / expected.double().sum() * len(tokens)
    result = stats.chisquare(counts[live], expected[live])
    if counts[~live].sum() or result.pvalue <= 1e-3:
        raise AssertionError(f"{counts.tolist()} for {expected.tolist()}: {result}")


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
@pytest.mark.parametrize("p", DRAFTERS, ids=str)
def test_tokens_follow_the_target_whatever_the_drafter(p, mode):
    tokens = drafted(p, mode=mode)
    logits = torch.stack([Q, BONUS]).log().repeat(N, 1)
    draft = SimpleNamespace(
        tokens=torch.stack([tokens, torch.full_like(tokens, -1)], 1).reshape(-1),
        logprobs=p.log().expand(2 * N, 5),
    )
    out = verify(logits, params_of([2] * N), draft, mode=mode)
    took = out["accepted"] > 0
    check(torch.where(took, out["verified_ids"][::2], out["sampled_ids"]), Q)
    if took.sum() > 1000:
        check(out["sampled_ids"][took], BONUS)
    if mode == "rejection":
        assert abs(float(took.double().mean()) - float(torch.minimum(p, Q).sum())) < 0.015
        torch.testing.assert_close(out["accept_prob"][::2], torch.minimum(p, Q).sum().expand(N), rtol=0, atol=1e-4)


def test_prefix_rule_forced_tokens_and_stops_of_greedy_requests():
    counts = [3, 1, 4, 2]
    best = torch.tensor([1, 2, 3, 4, 1, 0, 2, 3, 2, 2])
    logits = torch.nn.functional.one_hot(best, 5).float()
    tokens = torch.tensor([1, 0, -1, -1, 1, 4, 2, -1, 2, -1])
    draft = SimpleNamespace(tokens=tokens, logprobs=None)
    params = params_of(counts, temperature=0.0)
    stops = torch.tensor([[1, -1], [0, -1], [4, 0], [3, -1]])
    out = verify(logits, params, draft, mode="coupled", stop_ids=stops)
    assert out["accepted"].tolist() == [1, 0, 1, 1]
    assert out["sampled_ids"].tolist() == [2, 4, 0, 2]
    assert out["verified_ids"].tolist() == [1, -1, -1, -1, 1, -1, -1, -1, 2, -1]
    assert out["stopped"].tolist() == [True, False, True, False]
    assert out["accept_prob"].tolist() == [1, 0, 1, 1, 1, 0, 1, 1, 1, 1]
    forced = torch.tensor([3, -1, -1, -1, -1, 4, -1, -1, 2, 4])
    out = verify(logits, params, draft, mode="coupled", forced=forced)
    assert out["accepted"].tolist() == [0, 0, 3, 1]
    assert out["sampled_ids"].tolist() == [3, 4, 3, 4]


def test_draft_of_minus_one_never_accepts_and_the_residual_is_the_target():
    draft = SimpleNamespace(tokens=torch.full((2 * N,), -1), logprobs=torch.full((2 * N, 5), 0.2).log())
    out = verify(torch.stack([Q, BONUS]).log().repeat(N, 1), params_of([2] * N), draft, mode="rejection")
    assert out["accepted"].sum() == 0
    check(out["sampled_ids"], Q)


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_rows_do_not_depend_on_their_batch(mode):
    generator = torch.Generator().manual_seed(4)
    counts = [1, 3, 2, 4]
    logits = torch.randn(10, 5, generator=generator)
    draft = SimpleNamespace(
        tokens=torch.randint(0, 5, (10,), generator=generator),
        logprobs=torch.log_softmax(torch.randn(10, 5, generator=generator), 1),
    )
    params = params_of(counts)
    whole = verify(logits, params, draft, mode=mode)
    for i, (begin, end) in enumerate(zip(params.first_row[:-1].tolist(), params.first_row[1:].tolist(), strict=True)):
        part = slice(begin, end)
        names = ("temperature", "top_p", "top_k", "seeds", "positions")
        alone = SimpleNamespace(**{name: getattr(params, name)[part] for name in names}, min_p=None)
        alone.first_row = torch.tensor([0, end - begin])
        mine = SimpleNamespace(tokens=draft.tokens[part], logprobs=draft.logprobs[part])
        out = verify(logits[part], alone, mine, mode=mode)
        assert out["sampled_ids"][0] == whole["sampled_ids"][i]
        assert torch.equal(out["verified_ids"], whole["verified_ids"][part])


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(ShapeContractError, match="first_row"):
        verify(torch.zeros(3, 5), params_of([1, 1]), None, mode="coupled")
    draft = SimpleNamespace(tokens=torch.zeros(2), logprobs=torch.zeros(2, 4))
    with pytest.raises(ShapeContractError, match=r"draft\.logprobs"):
        verify(torch.zeros(2, 5), params_of([2]), draft, mode="rejection")
    assert np.isfinite(float(verify(torch.zeros(1, 5), params_of([1]), None, mode="rejection")["sampled_logprob"]))
