"""Sampling steps: golden keys and draws (``spec/sampling.md`` 2.4, 2.5), filters against a loop."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from deepinfer_core.errors import ShapeContractError
from deepinfer_cpu.ops import sampling

KEYS = [
    (0, 0, 0, 0xE220A8397B1DCDAF), (0, 1, 0, 0xDADED652ADB02DA7), (1, 0, 0, 0x910A2DEC89025CC1),
    (42, 1000, 0, 0xBEB1F2D15A38E200), (42, 1000, 1, 0xB5CA489AA3178E55), (2**64 - 1, 131071, 0, 0x5642C7793445C86C),
    (42, 1000, 3, 0xC1C50ED1BAF80D56),
]  # fmt: skip
DRAWS = [3, 3, 2, 3, 3, 2]


@pytest.mark.parametrize(("seed", "position", "case", "value"), KEYS)
def test_key_equals_the_golden_value(seed, position, case, value):
    seeds = torch.from_numpy(np.array([seed], dtype=np.uint64).view(np.int64))
    got = sampling.key(seeds, torch.tensor([position]), case).numpy().view(np.uint64)
    assert int(got[0]) == value


@pytest.mark.parametrize(("given", "token"), list(zip(KEYS[:6], DRAWS, strict=True)))
def test_draw_from_the_golden_weights_gives_the_golden_token(given, token):
    seed, position, case, _ = given
    logprobs = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    seeds = torch.from_numpy(np.array([seed], dtype=np.uint64).view(np.int64))
    got = sampling.draw(logprobs, seeds, torch.tensor([position]), case=case)
    assert got.tolist() == [token]
    assert got.dtype == torch.int32


def test_draw_does_not_depend_on_the_row():
    logprobs = torch.log_softmax(torch.randn(8, 50), 1)
    seeds, positions = torch.randint(-(2**62), 2**62, (8,)), torch.arange(8, dtype=torch.int32)
    together = sampling.draw(logprobs, seeds, positions)
    alone = [sampling.draw(logprobs[i : i + 1], seeds[i : i + 1], positions[i : i + 1]).item() for i in range(8)]
    assert together.tolist() == alone


def test_draw_follows_the_distribution():
    probs = torch.tensor([0.5, 0.25, 0.2, 0.05])
    n = 20000
    drawn = sampling.draw(probs.log().expand(n, 4), torch.full((n,), 7), torch.arange(n))
    counts = torch.bincount(drawn.long(), minlength=4) / n
    torch.testing.assert_close(counts, probs, rtol=0, atol=0.012)


def test_draw_without_any_weight_takes_the_most_probable():
    logprobs = torch.full((1, 3), -30.0)
    logprobs[0, 2] = -29.0
    assert sampling.draw(logprobs, torch.tensor([1]), torch.tensor([1])).tolist() == [2]


def plain_keep(logits, temperature, top_p, top_k, min_p):
    if temperature < 1e-5:
        return {max(range(len(logits)), key=lambda v: (logits[v], -v))}
    z = [v / temperature for v in logits]
    top = max(z)
    p = [math.exp(v - top) for v in z]
    alive = {v for v in range(len(z)) if p[v] >= min_p and z[v] > -math.inf}
    total = math.fsum(p[v] for v in alive)
    order = sorted(alive, key=lambda v: (-z[v], v))
    kept, mass = set(), 0.0
    for rank, v in enumerate(order):
        if mass > top_p or (top_k > 0 and rank >= top_k):
            break
        kept.add(v)
        mass += p[v] / total
    return kept


@pytest.mark.parametrize("seed", range(5))
def test_logprobs_keep_what_the_loop_keeps(seed):
    torch.manual_seed(seed)
    logits = torch.randn(8, 40) * 3
    logits[:, 5] = logits[:, 9]
    logits[0, 3] = -math.inf
    p = SimpleNamespace(
        temperature=torch.tensor([1.0, 0.7, 1.5, 0.0, 1.0, 2.0, 1.0, 0.9]),
        top_p=torch.tensor([1.0, 0.9, 0.5, 1.0, 0.3, 0.95, 1.0, 0.8]),
        top_k=torch.tensor([-1, 5, -1, -1, 2, 10, 1, -1]),
        min_p=torch.tensor([0.0, 0.05, 0.0, 0.0, 0.0, 0.1, 0.0, 0.02]),
    )
    got = sampling.logprobs(logits, p)
    for r in range(8):
        kept = plain_keep(
            logits[r].tolist(), *(float(getattr(p, f)[r]) for f in ("temperature", "top_p", "top_k", "min_p"))
        )
        assert set((got[r] > -math.inf).nonzero().flatten().tolist()) == kept
        assert got[r].exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_logprobs_of_equal_logits_keep_the_lower_id():
    p = SimpleNamespace(temperature=torch.ones(1), top_p=torch.ones(1), top_k=torch.tensor([2]), min_p=None)
    assert (sampling.logprobs(torch.zeros(1, 5), p) > -math.inf).tolist() == [[True, True, False, False, False]]


def test_logprobs_at_a_mass_equal_to_top_p_still_admit_the_next():
    p = SimpleNamespace(temperature=torch.ones(1), top_p=torch.tensor([0.5]), top_k=torch.tensor([-1]), min_p=None)
    got = sampling.logprobs(torch.tensor([[0.5, 0.25, 0.25]]).log(), p)
    assert (got > -math.inf).tolist() == [[True, True, False]]


def test_logprobs_with_misfitting_parameters_are_refused():
    p = SimpleNamespace(temperature=torch.ones(2), top_p=torch.ones(2), top_k=torch.ones(2), min_p=None)
    with pytest.raises(ShapeContractError, match=r"sample\.logprobs"):
        sampling.logprobs(torch.zeros(1, 5), p)


def test_mask_touches_only_listed_requests_within_their_rows():
    logits = torch.zeros(5, 40)
    allowed = np.zeros((2, 2), dtype=np.uint32)
    allowed[0, 1] = 1 << 2  # token 34
    allowed[1, 0] = (1 << 31) | 1
    bitmask = torch.from_numpy(allowed.view(np.int32))
    first_row = torch.tensor([0, 1, 3, 5], dtype=torch.int32)
    got = sampling.mask(logits, bitmask, torch.tensor([0, 2], dtype=torch.int32), first_row, 1)
    assert got is logits
    assert not logits[:4].any()  # request 0 has one row: step 1 is past it
    assert (logits[4] == 0).nonzero().flatten().tolist() == [0, 31]


def test_mask_of_a_narrow_bitmask_is_refused():
    with pytest.raises(ShapeContractError, match=r"sample\.mask"):
        sampling.mask(
            torch.zeros(1, 40), torch.zeros(1, 1, dtype=torch.int32), torch.tensor([0]), torch.tensor([0, 1]), 0
        )


def test_draw_of_a_broken_row_is_a_token_and_leaves_the_others_alone():
    logprobs = torch.log_softmax(torch.randn(3, 50), 1)
    seeds, positions = torch.tensor([1, 2, 3]), torch.tensor([5, 6, 7])
    whole = sampling.draw(logprobs, seeds, positions)
    logprobs[1] = math.nan
    got = sampling.draw(logprobs, seeds, positions)
    assert got[[0, 2]].tolist() == whole[[0, 2]].tolist()
    assert 0 <= got[1].item() < 50
