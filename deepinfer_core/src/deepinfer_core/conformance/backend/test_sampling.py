"""``sample.mask``, ``sample.logprobs`` and ``sample.draw`` (``spec/sampling.md`` 2.2 to 2.6, 3.4)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance.backend.sampling_cases import (
    drawn,
    expected_row,
    params_of,
    require_drawn,
    signed,
)
from deepinfer_core.conformance.bitwise import require_row_invariant
from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.model_sizes import RELEASED, SMALL
from deepinfer_core.conformance.reference import sampling_rows as reference
from deepinfer_core.conformance.reference.sampling import GREEDY_BELOW, key

MASK, LOGPROBS, DRAW = "sample.mask", "sample.logprobs", "sample.draw"
GOLDEN_KEYS = [
    (0, 0, 0, 0xE220A8397B1DCDAF),
    (0, 1, 0, 0xDADED652ADB02DA7),
    (1, 0, 0, 0x910A2DEC89025CC1),
    (42, 1000, 0, 0xBEB1F2D15A38E200),
    (42, 1000, 1, 0xB5CA489AA3178E55),
    (2**64 - 1, 131071, 0, 0x5642C7793445C86C),
    (42, 1000, 3, 0xC1C50ED1BAF80D56),
]
"""Seed, position, case, key (``spec/sampling.md`` 2.4)."""
GOLDEN_DRAWS = [3, 3, 2, 3, 3, 2]
"""Tokens of (.1, .2, .3, .4) under the first six keys (2.5)."""


def masked(logits: Tensor, masks: list[list[int]], reqs: list[int], first_row: list[int], step: int) -> Tensor:
    out = logits.clone()
    for words, request in zip(masks, reqs, strict=True):
        row = first_row[request] + step
        if row < first_row[request + 1]:
            for token in range(out.shape[1]):
                if not reference.allowed(words, token):
                    out[row, token] = -math.inf
    return out


@pytest.mark.op(MASK)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 64, 1000, 4099])
def test_a_mask_forbids_the_tokens_of_its_clear_bits(
    backend: Any, device: Any, generator: Any, tolerance: Any, guarded: Any, vocab: int
) -> None:
    words, first_row = -(-vocab // 32), [0, 3, 4, 4, 9, 10]
    logits = torch.randn(10, vocab, generator=generator)
    logits[4, 0], logits[8, 0], logits[0, 0] = math.nan, math.inf, -math.inf
    for reqs, step in (([0, 3], 0), ([3], 4), ([3, 0, 1], 2), ([4, 2, 1, 0], 1), ([], 0), ([0, 1, 2, 3, 4], 0)):
        masks = torch.randint(-(2**31), 2**31, (len(reqs), words), generator=generator)
        if len(reqs) > 1:
            masks[0], masks[1] = -1, 0
        tensor = guarded.of(logits, name="logits")
        arrays = [masks.to(torch.int32).reshape(len(reqs), words), torch.tensor(reqs, dtype=torch.int32),
                  torch.tensor(first_row, dtype=torch.int32)]  # fmt: skip
        bits, rows, first = (
            guarded.of(a, name=n, frozen=True) for a, n in zip(arrays, ("bits", "reqs", "rows"), strict=True)
        )
        got = backend.ops[MASK](tensor, bits, rows, first, step)
        unsigned = [[int(w) & 0xFFFFFFFF for w in line] for line in masks.tolist()]
        expected = masked(logits, unsigned, reqs, first_row, step)
        for name, result in (("in place", tensor), ("returned", got)):
            tolerance(MASK)(result, expected, case=f"requests {reqs}, step {step}, {name}")


@pytest.mark.op(MASK)
def test_a_mask_of_the_released_vocabulary_forbids_the_right_tokens(
    backend: Any, device: Any, generator: Any, tolerance: Any
) -> None:
    vocab = RELEASED.vocab
    logits = torch.randn(3, vocab, generator=generator)
    mask = torch.randint(-(2**31), 2**31, (2, vocab // 32), generator=generator)
    bits = (mask.unsqueeze(2) >> torch.arange(32)) & 1
    expected = logits.clone()
    for line, row in enumerate((2, 0)):
        expected[row, bits[line].flatten() == 0] = -math.inf
    tensor = logits.to(device)
    backend.ops[MASK](tensor, mask.to(torch.int32).to(device), torch.tensor([1, 0], dtype=torch.int32, device=device),
                      torch.tensor([0, 2, 3], dtype=torch.int32, device=device), 0)  # fmt: skip
    tolerance(MASK)(tensor, expected, case="129280 tokens")


SETTINGS = {
    "off": (1.0, 1.0, -1, None),
    "temperature": (0.7, 1.0, -1, None),
    "hot": (5.0, 1.0, -1, None),
    "top-p": (1.0, 0.6, -1, None),
    "tiny top-p": (1.0, 1e-6, -1, None),
    "top-k": (1.0, 1.0, 5, None),
    "top-k of one": (0.3, 1.0, 1, None),
    "top-k beyond": (1.0, 1.0, 10**6, None),
    "min-p": (1.0, 1.0, -1, 0.05),
    "all": (0.8, 0.9, 40, 0.01),
    "top-p before top-k": (1.0, 0.5, 3, None),
    "greedy": (0.0, 1.0, -1, None),
    "greedy with others": (9e-6, 0.3, 7, 0.2),
}


def judge_logprobs(backend: Any, device: Any, check: Any, logits: Tensor, rows: list[Any], case: str) -> Tensor:
    __tracebackhide__ = True
    got = backend.ops[LOGPROBS](logits.to(device), params_of(rows, device)).cpu()
    require_equal(got.dtype, torch.float32, "log-probabilities are fp32", op=LOGPROBS)
    for t, row in enumerate(rows):
        expected = expected_row(logits[t], row, got[t], op=LOGPROBS, case=case, row=t, params=row)
        check(got[t], expected, case=case, row=t, params=row)
    return got


@pytest.mark.op(LOGPROBS)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("vocab", [1, 7, 1536])
def test_logprobs_follow_the_order_of_the_steps(
    backend: Any, device: Any, generator: Any, tolerance: Any, vocab: int
) -> None:
    rows = list(SETTINGS.values())
    logits = torch.randn(len(rows), vocab, generator=generator) * 3
    judge_logprobs(backend, device, tolerance(LOGPROBS), logits, rows, f"{vocab} tokens")


@pytest.mark.op(LOGPROBS)
@pytest.mark.level("smoke")
def test_equal_logits_rank_by_the_lower_id(backend: Any, device: Any, tolerance: Any) -> None:
    logits = torch.tensor([[0.0, -0.0, 1.0, 1.0, 1.0, 0.0, -math.inf, 1.0]]).repeat(9, 1)
    logits[8] = 2.0
    rows: list[Any] = [(1.0, 1.0, k, None) for k in range(1, 8)] + [(0.0, 1.0, -1, None), (0.0, 1.0, -1, None)]
    got = judge_logprobs(backend, device, tolerance(LOGPROBS), logits, rows, "ties")
    kept = [(row > -math.inf).nonzero().flatten().tolist() for row in got]
    order = [2, 3, 4, 7, 0, 1, 5]
    for k in range(1, 8):
        require_equal(kept[k - 1], sorted(order[:k]), "tokens that top-k keeps of equals", op=LOGPROBS, case=f"k {k}")
    require_equal(kept[7:], [[2], [0]], "the best token of greedy rows", op=LOGPROBS)


@pytest.mark.op(LOGPROBS)
@pytest.mark.level("smoke")
def test_mass_before_a_token_decides_and_equal_to_top_p_still_admits(backend: Any, device: Any, tolerance: Any) -> None:
    """Probabilities of 1/2, 1/4, 1/8, 1/8 exactly: the token behind a mass of top_p comes in, the next does not."""
    logits = torch.tensor([[3.0, 2.0, 1.0, 1.0]]) * math.log(2)
    for top_p, count in ((0.25, 1), (0.4999, 1), (0.7499, 2), (0.76, 3), (0.8749, 3), (1.0, 4)):
        got = judge_logprobs(backend, device, tolerance(LOGPROBS), logits, [(1.0, top_p, -1, None)], f"top-p {top_p}")
        require_equal(int((got > -math.inf).sum()), count, "tokens kept", op=LOGPROBS, case=f"top-p {top_p}")


@pytest.mark.op(LOGPROBS)
@pytest.mark.level("smoke")
def test_a_row_without_distribution_says_so_and_hurts_no_other(
    backend: Any, device: Any, generator: Any, tolerance: Any
) -> None:
    logits = torch.randn(5, 50, generator=generator)
    logits[1, 7], logits[3] = math.nan, -math.inf
    rows = [SETTINGS[n] for n in ("all", "off", "top-p", "off", "greedy")]
    got = backend.ops[LOGPROBS](logits.to(device), params_of(rows, device)).cpu()
    for t in (0, 2, 4):
        expected = expected_row(logits[t], rows[t], got[t], op=LOGPROBS, case="beside rows of NaN", row=t)
        tolerance(LOGPROBS)(got[t], expected, case="beside rows of NaN", row=t)
    for t in (1, 3):
        sane = bool(got[t].isfinite().any()) and abs(float(got[t].exp().nan_to_num(nan=9.0).sum()) - 1) < 1e-3
        require(not sane, "a row without a distribution looks like one", op=LOGPROBS, row=t)


@pytest.mark.op(LOGPROBS)
def test_masked_and_infinite_rows_of_the_released_vocabulary(
    backend: Any, device: Any, generator: Any, tolerance: Any
) -> None:
    logits = torch.randn(4, RELEASED.vocab, generator=generator) * 2
    logits[0, torch.rand(RELEASED.vocab, generator=generator) < 0.9] = -math.inf
    logits[1, 5:] = -math.inf
    rows = [SETTINGS[n] for n in ("all", "top-p", "top-k", "min-p")]
    judge_logprobs(backend, device, tolerance(LOGPROBS), logits, rows, "129280 tokens")


@pytest.mark.op(LOGPROBS)
@pytest.mark.needs("feature:deterministic_sampling")
def test_logprobs_of_a_row_have_the_same_bits_alone_and_in_a_batch(backend: Any, device: Any, generator: Any) -> None:
    rows = list(SETTINGS.values())
    logits = (torch.randn(len(rows), 500, generator=generator) * 3).to(device)

    def run(chosen: Tensor) -> Tensor:
        picked = [rows[i] for i in chosen.tolist()]
        result: Tensor = backend.ops[LOGPROBS](logits[chosen.to(device)], params_of(picked, device))
        return result

    without_min_p = [i for i, row in enumerate(rows) if row[3] is None]
    require_row_invariant(LOGPROBS, lambda c: run(torch.tensor(without_min_p)[c]), len(without_min_p), generator)


def draw(backend: Any, device: Any, logprobs: Tensor, seeds: list[int], positions: list[int], case: int = 0) -> Tensor:
    got: Tensor = backend.ops[DRAW](
        logprobs.to(device), signed(seeds, device), torch.tensor(positions, dtype=torch.int32, device=device), case=case
    )
    require_equal(got.dtype, torch.int32, "tokens are int32", op=DRAW)
    return got


@pytest.mark.op(DRAW)
@pytest.mark.level("smoke")
def test_golden_keys_and_draws(backend: Any, device: Any) -> None:
    for seed, position, case, value in GOLDEN_KEYS:
        require_equal(key(seed, position, case), value, "the reference's own key", op=DRAW)
    p = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    require_equal(reference.weights(p[0].numpy()), [214748368, 429496736, 644245120, 858993472], "weights", op=DRAW)
    for (seed, position, case, _), token in zip(GOLDEN_KEYS, GOLDEN_DRAWS, strict=False):
        got = draw(backend, device, p.log(), [seed], [position], case)
        require_equal(got.tolist(), [token], "golden draw", op=DRAW, seed=hex(seed), position=position, case=case)


@pytest.mark.op(DRAW)
@pytest.mark.parametrize("case", [0, 1, 3, 4, 9])
def test_draws_from_many_equal_tokens_show_the_key(backend: Any, device: Any, generator: Any, case: int) -> None:
    """With 2^14 tokens of equal weight the token is the upper 14 bits of the key."""
    rows, vocab = 24, 1 << 14
    seeds = [int(s) & reference.MASK64 for s in torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator)]
    seeds[:3] = [0, 2**64 - 1, 2**63]
    positions = torch.randint(0, 2**31, (rows,), generator=generator).tolist()
    positions[:5] = [0, 2**31 - 1, 131071, 1, 2**24 + 1]
    logprobs = torch.full((rows, vocab), -14 * math.log(2))
    got = draw(backend, device, logprobs, seeds, positions, case)
    require_drawn(got, logprobs, seeds, positions, case, op=DRAW, doubtful=1)
    upper = [key(s, p, case) >> 50 for s, p in zip(seeds, positions, strict=True)]
    far = [abs(token - u) for token, u in zip(got.tolist(), upper, strict=True)]
    require(max(far) <= 1, "the tokens are not the upper bits of the keys", op=DRAW, case=case, got=far)


@pytest.mark.op(DRAW)
@pytest.mark.level("smoke")
def test_the_least_and_the_greatest_key_draw_the_first_and_the_last_token_with_weight(
    backend: Any, device: Any
) -> None:
    p = torch.tensor([[0.0, 0.0, 0.25, 0.0, 0.5, 0.25, 0.0, 1e-10]] * 2)
    for case, position in ((0, 7), (1, 0), (0, 2**31 - 1)):
        seeds = [reference.seed_of_key(0, position, case), reference.seed_of_key(2**64 - 1, position, case)]
        got = draw(backend, device, p.log(), seeds, [position] * 2, case)
        require_equal(got.tolist(), [2, 5], "tokens of the keys 0 and 2^64 - 1", op=DRAW, case=case, position=position)


@pytest.mark.op(DRAW)
@pytest.mark.level("smoke")
def test_keys_on_either_side_of_a_boundary_draw_its_two_tokens(backend: Any, device: Any) -> None:
    """A chance that is off by one in a hundred thousand moves the boundary past one of the keys."""
    p = torch.tensor([0.125, 0.25, 0.5, 0.0, 0.0625, 0.0625])
    for token, boundary in ((0, 0.125), (1, 0.375), (2, 0.875), (4, 0.9375)):
        keys = [int(boundary * 2**64) + side * (1 << 64) // 200_000 for side in (-1, 1)]
        seeds = [reference.seed_of_key(k, 11, 0) for k in keys]
        got = draw(backend, device, p.log().repeat(2, 1), seeds, [11, 11])
        behind = 4 if token == 2 else token + 1
        require_equal(got.tolist(), [token, behind], "tokens around a boundary", op=DRAW, case=f"boundary {boundary}")


@pytest.mark.op(DRAW)
@pytest.mark.level("smoke")
def test_a_row_without_weight_gives_its_most_probable_token(backend: Any, device: Any) -> None:
    logprobs = torch.tensor([[-30.0, -25.0, -26.0, -25.0], [-math.inf, -40.0, -math.inf, -math.inf], [0.0, -9, -9, -9]])
    got = draw(backend, device, logprobs, [1, 2, 3], [4, 5, 6])
    require_equal(got.tolist(), [1, 1, 0], "tokens of rows whose probabilities are below 2^-31", op=DRAW)


@pytest.mark.op(DRAW)
@pytest.mark.level("smoke")
def test_a_row_of_nan_hurts_no_other_and_stays_in_the_vocabulary(backend: Any, device: Any, generator: Any) -> None:
    logprobs = torch.log_softmax(torch.randn(4, 30, generator=generator), 1)
    sick = logprobs.clone()
    sick[1], sick[2, 3] = math.nan, math.nan
    got = draw(backend, device, sick, [5, 6, 7, 8], [9, 9, 9, 9])
    require_drawn(got[[0, 3]], logprobs[[0, 3]], [5, 8], [9, 9], 0, op=DRAW, case_="beside rows of NaN")
    require(bool(((got >= 0) & (got < 30)).all()), "a row of NaN gives no token", op=DRAW, got=got.tolist())


@pytest.mark.op(DRAW)
@pytest.mark.parametrize("vocab", [1, 2, 1536, 129_280])
def test_draws_are_the_canonical_ones(backend: Any, device: Any, generator: Any, repeat: Any, vocab: int) -> None:
    rows = 40 if vocab < 10_000 else 4
    logprobs = torch.log_softmax(torch.randn(rows, vocab, generator=generator) * 4, 1)
    logprobs[::3, : vocab // 2] = -math.inf if vocab > 1 else 0.0
    logprobs[::3] = torch.log_softmax(logprobs[::3], 1)
    seeds, positions = list(range(rows)), [1000 + 3 * r for r in range(rows)]
    for case in (0, 1):
        got = draw(backend, device, logprobs, seeds, positions, case)
        require_drawn(got, logprobs, seeds, positions, case, op=DRAW, doubtful=1)
    wide = torch.tensor(positions, dtype=torch.int64, device=device)
    again = repeat(DRAW, logprobs.to(device), signed(seeds, device), wide, case=1)
    require_equal(again.tolist(), got.tolist(), "tokens for positions of int64", op=DRAW)
    empty = draw(backend, device, logprobs[:0], [], [])
    require_equal(tuple(empty.shape), (0,), "tokens of no rows", op=DRAW)


@pytest.mark.op(DRAW)
@pytest.mark.needs("feature:deterministic_sampling")
def test_a_draw_does_not_depend_on_its_batch(backend: Any, device: Any, generator: Any) -> None:
    logprobs = torch.log_softmax(torch.randn(12, 700, generator=generator), 1).to(device)
    seeds = signed(list(range(100, 112)), device)
    positions = torch.arange(12, dtype=torch.int32, device=device)

    def run(rows: Tensor) -> Tensor:
        r = rows.to(device)
        result: Tensor = backend.ops[DRAW](logprobs[r], seeds[r], positions[r])
        return result

    require_row_invariant(DRAW, run, 12, generator)


@pytest.mark.op(LOGPROBS, DRAW)
@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(10))
def test_random_rows_are_filtered_and_drawn_like_the_reference(
    backend: Any, device: Any, rng: Any, tolerance: Any, seed: int
) -> None:
    generator = rng(3300 + seed)
    vocab = (50, SMALL.vocab, 5003)[seed % 3]
    rows = [
        (
            float(torch.rand(1, generator=generator) * 2) * (i % 7 > 0),
            float(torch.rand(1, generator=generator) * 0.98 + 0.02),
            int(torch.randint(-1, vocab, (1,), generator=generator)) or -1,
            (None, float(torch.rand(1, generator=generator) * 0.2))[seed % 2],
        )
        for i in range(25)
    ]
    logits = torch.randn(25, vocab, generator=generator) * 4
    logits[::4] = (logits[::4] * 2).round() / 2  # ties
    got = judge_logprobs(backend, device, tolerance(LOGPROBS), logits, rows, f"{vocab} tokens")
    seeds, positions = list(range(25)), [seed * 100 + i for i in range(25)]
    tokens = draw(backend, device, got, seeds, positions)
    require_drawn(tokens, got, seeds, positions, 0, op=DRAW, doubtful=1)
    greedy = [i for i, row in enumerate(rows) if row[0] < GREEDY_BELOW]
    best = [drawn(got[i], 0, 0, 0)[0] for i in greedy]
    require_equal(tokens[greedy].tolist(), best, "a greedy row has one token whatever the key", op=DRAW)
