"""What tokens are drawn from: temperature, min-p, top-p and top-k in this order (``spec/sampling.md`` 2.2).

Drawn with many seeds, tokens must follow the distribution of a plain double-precision reference; a token that a filter
removes must never come. Cases keep clear of the thresholds by more than the 1e-4 that 2.3 allows.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.reference.sampling import distribution, survivors
from deepinfer_core.conformance.sampler.steps import random_logits, step_inputs
from deepinfer_core.conformance.statistics import require_distribution

pytestmark = pytest.mark.level("core")
COUNT = 4096
ROW = [float(value) for value in np.log(np.array([0.30, 0.22, 0.16, 0.12, 0.09, 0.06, 0.03, 0.02], np.float32))]
SHUFFLED = [ROW[token] for token in (3, 6, 0, 5, 2, 7, 1, 4)]
# Far from 1 and from 0 in the logits: a filter that compares raw logits, and not probabilities, shows.
CASES: list[dict[str, float]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 3},
    {"top_k": 100},
    {"top_p": 0.05},
    {"top_p": 0.45},
    {"top_p": 0.6},
    {"top_p": 0.9},
    {"min_p": 0.25},
    {"min_p": 0.7},
    {"min_p": 1.0},
    {"temperature": 0.5, "min_p": 0.1},
    {"temperature": 2.5, "top_p": 0.5},
    {"top_p": 0.6, "top_k": 2},
    {"top_p": 0.6, "top_k": 3, "min_p": 0.25, "temperature": 1.5},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(f"{k}{v}" for k, v in case.items()) or "plain")
def test_tokens_follow_the_distribution_of_the_filters(bench: Any, case: Any) -> None:
    tokens = bench(len(SHUFFLED)).draws(SHUFFLED, COUNT if case else 4 * COUNT, **case)
    require_distribution(tokens, distribution(SHUFFLED, **case), "drawn with many seeds", case=case)


def test_filters_are_those_of_the_row_above_all_shifts(bench: Any) -> None:
    """Probabilities do not change when a constant is added to all logits."""
    for shift in (-60.0, 60.0, 1000.0):
        row = [value + shift for value in SHUFFLED]
        case = {"min_p": 0.25, "top_p": 0.7, "top_k": 3}
        tokens = bench(len(row)).draws(row, 1024, **case)
        require_distribution(tokens, distribution(SHUFFLED, **case), "after a shift of all logits", shift=shift)


def test_top_p_comes_before_top_k(bench: Any) -> None:
    """After top-k the two best have 0.6 and 0.4; top-p 0.55 over these would leave one. Over all, it leaves two."""
    row = [float(np.log(p)) for p in (0.42, 0.28, 0.15, 0.15)]
    case = {"top_p": 0.55, "top_k": 2}
    require_equal(survivors(row, top_p=0.55, top_k=2), [0, 1], "the reference is wrong")
    require_distribution(bench(4).draws(row, 1024, **case), distribution(row, **case), "top-p before top-k")


def test_min_p_comes_before_top_p(bench: Any) -> None:
    """min-p drops the tail, so that what is left reaches top-p one token earlier."""
    row = [float(np.log(p)) for p in (0.4, 0.2, 0.1, 0.1, 0.1, 0.1)]
    case = {"min_p": 0.4, "top_p": 0.65}
    require_equal(survivors(row, min_p=0.4, top_p=0.65), [0], "the reference is wrong")
    require_distribution(bench(6).draws(row, 512, **case), distribution(row, **case), "min-p before top-p")


def test_equal_tokens_at_the_edge_of_top_k_leave_by_the_higher_id(bench: Any) -> None:
    row = [1.0, 2.0, 1.0, 1.0, 2.0, 1.0]
    tokens = bench(6).draws(row, 1024, top_k=3)
    require_equal(sorted(set(tokens)), [0, 1, 4], "ties at the edge of top-k")


def test_equal_tokens_at_the_edge_of_top_p_leave_by_the_higher_id(bench: Any) -> None:
    row = [0.0] * 8
    tokens = bench(8).draws(row, 2048, top_p=0.3)  # mass before the tokens: 0, 1/8, 2/8, then 3/8
    require_equal(sorted(set(tokens)), [0, 1, 2], "ties at the edge of top-p")


def test_filters_of_requests_in_one_step_are_their_own(bench: Any) -> None:
    """Alternating parameters, each row's own distribution."""
    made, n = bench(len(SHUFFLED)), 256
    cases: list[dict[str, float]] = [{"top_k": 2}, {"top_p": 0.45}, {"min_p": 0.7}, {"temperature": 0.3}]
    columns: dict[str, list[float]] = {name: [] for name in ("top_k", "top_p", "min_p", "temperature")}
    neutral = {"top_k": -1, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
    for i in range(n):
        for name, values in columns.items():
            values.append(cases[i % len(cases)].get(name, neutral[name]))
    tokens: list[list[int]] = [[] for _ in cases]
    for first in range(0, 4096, n):
        parameters = {name: np.array(values) for name, values in columns.items()}
        seeds = np.arange(first, first + n)
        out = made.step(np.tile(np.asarray(SHUFFLED, np.float32), (n, 1)), step_inputs(n, seed=seeds, **parameters))
        for i, token in enumerate(out.tokens.tolist()):
            tokens[i % len(cases)].append(token)
    for case, drawn in zip(cases, tokens, strict=True):
        require_distribution(drawn, distribution(SHUFFLED, **case), "beside other parameters", case=case)


def test_wide_row_follows_its_distribution(bench: Any) -> None:
    """A vocabulary of several thousand, most of it improbable: the draw must find its way through all of it."""
    vocab_size = 4099
    row = random_logits(1, vocab_size, seed=8, spread=2.5)[0]
    p = np.exp(row.astype(np.float64) - row.max())
    p /= p.sum()
    edges = np.linspace(0, vocab_size, 17).astype(int)
    tokens = np.array(bench(vocab_size).draws(row, 2048))
    bins = np.searchsorted(edges, tokens, side="right") - 1
    shares = [float(p[a:b].sum()) for a, b in itertools.pairwise(edges)]
    require_distribution(bins.tolist(), shares, "parts of a wide vocabulary")


def test_very_flat_and_very_steep_rows_are_sampled(bench: Any) -> None:
    made = bench(64)
    flat = made.draws([0.0] * 64, 4096)
    require_distribution(flat, [1 / 64] * 64, "a flat row")
    steep = [0.0] * 64
    steep[41] = 80.0
    require_equal(set(made.draws(steep, 256)), {41}, "a row with one probable token")
    require(len(set(made.draws(steep, 256, temperature=1000.0))) > 20, "a high temperature does not flatten the row")
