"""Pass@1 against formulas, a slow plain bootstrap, and sampling from known distributions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, binomtest

from deepinfer_eval.pass_at_1 import PassAt1, estimate


def of(counts: list[tuple[int, int]], confidence: float = 0.95) -> PassAt1:
    made = estimate(counts, confidence)
    assert made is not None
    return made


def test_one_answer_an_item_is_the_exact_binomial_interval() -> None:
    made = of([(1, 1)] * 14 + [(0, 1)] * 6)
    exact = binomtest(14, 20).proportion_ci(0.95, "exact")
    assert made.value == 0.7
    assert made.standard_error == pytest.approx((0.7 * 0.3 / 19) ** 0.5)
    # n - 1 in the standard error: one answer less counts.
    assert made.effective_answers == pytest.approx(19)
    assert made.interval == pytest.approx(tuple(exact), abs=0.02)


def test_items_count_alike_whatever_their_number_of_answers() -> None:
    assert of([(1, 1), (0, 9)]).value == 0.5


def test_items_without_an_answer_are_left_out() -> None:
    assert of([(2, 4), (0, 0), (4, 4)]) == of([(2, 4), (4, 4)])
    assert estimate([(0, 0)]) is None
    assert estimate([]) is None


def test_one_item_gives_no_interval() -> None:
    made = of([(3, 4)])
    assert (made.value, made.interval, made.standard_error) == (0.75, None, None)


@pytest.mark.parametrize("right", [0, 8])
def test_items_all_alike_leave_an_interval_as_wide_as_that_of_one_answer_an_item(right: int) -> None:
    made = of([(right, 8)] * 30)
    assert made.effective_answers is not None
    assert made.effective_answers <= 30
    assert made.interval is not None
    assert made.interval[1] - made.interval[0] > 0.1


def test_more_answers_of_the_same_items_help_only_so_far() -> None:
    hard, easy = (0, 1), (1, 1)
    few = of([hard] * 10 + [easy] * 20)
    many = of([(0, 64)] * 10 + [(64, 64)] * 20)
    assert few.standard_error == many.standard_error
    assert many.interval == pytest.approx(few.interval, abs=0.01)


def test_interval_is_near_that_of_a_bootstrap_over_items() -> None:
    rng = np.random.default_rng(5)
    counts = [(int(rng.binomial(16, share)), 16) for share in rng.beta(2, 1.2, 120)]
    shares = np.array([right / of for right, of in counts])
    means = [rng.choice(shares, len(shares)).mean() for _ in range(4000)]
    made = of(counts)
    assert made.interval == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.015)


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.3), (2, 2), (4, 0.4)])
def test_interval_covers_the_truth_as_often_as_it_says(a: float, b: float) -> None:
    """30 items, 8 answers each; in 200 runs 95 % is right within 3.1 % (two standard deviations)."""
    rng = np.random.default_rng(11)
    truth, covered = float(beta(a, b).mean()), 0
    for _ in range(200):
        counts = [(int(rng.binomial(8, share)), 8) for share in rng.beta(a, b, 30)]
        interval = of(counts).interval
        assert interval is not None
        covered += interval[0] <= truth <= interval[1]
    assert covered / 200 >= 0.95 - 0.031


def test_interval_is_wider_for_more_confidence() -> None:
    counts = [(i % 5, 4) for i in range(4)] * 10
    low, high = of(counts, 0.8).interval, of(counts, 0.99).interval
    assert low is not None
    assert high is not None
    assert high[0] < low[0] < low[1] < high[1]
