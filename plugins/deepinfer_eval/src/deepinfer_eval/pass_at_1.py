"""Pass@1 and how far it can be trusted.

Pass@1 is the mean over items of the share of right answers. Answers to one item are no independent draws: an easy item
is answered right each time. So the items are what was sampled. The standard error is that of a mean over items

    se = sqrt(sum_i (f_i - p)^2 / (k - 1) / k),    f_i the share of item i, p their mean, k items

and the interval is that of Korn and Graubard (1998, "Confidence Intervals for Proportions with Small Expected Number
of Positive Counts Estimated from Survey Data"): the exact interval of Clopper and Pearson for as many independent
answers as would have this standard error, n* = p (1 - p) / se^2, corrected for the degrees of freedom of k clusters and
never more than there are answers. Unlike a normal or bootstrap interval it stays in [0, 1] and has a width where all
answers are right: there the spread over items says nothing, and an item counts as one answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen

METHOD = "Korn-Graubard, items as clusters"


@frozen
class PassAt1:
    """The estimate. ``interval`` and ``standard_error`` are None for fewer than two items."""

    value: float
    standard_error: float | None
    interval: tuple[float, float] | None
    confidence: float
    effective_answers: float | None
    """Independent answers that would say as much."""


def estimate(counts: Sequence[tuple[int, int]], confidence: float = 0.95) -> PassAt1 | None:
    """Pass@1 of items with these (right answers, answers); items without an answer are left out.

    :returns: None where no item has an answer.
    """
    counts = [(right, of) for right, of in counts if of]
    if not counts:
        return None
    items, answers = len(counts), sum(of for _, of in counts)
    shares = [right / of for right, of in counts]
    p = math.fsum(shares) / items
    if items < 2:
        return PassAt1(p, None, None, confidence, None)
    variance = math.fsum((share - p) ** 2 for share in shares) / (items - 1) / items
    effective = _effective(p, variance, items, answers, 1 - confidence)
    return PassAt1(p, math.sqrt(variance), _exact(p * effective, effective, 1 - confidence), confidence, effective)


def _effective(p: float, variance: float, items: int, answers: int, alpha: float) -> float:
    from scipy.stats import t

    if p in (0.0, 1.0):
        effective = float(items)
    elif variance > 0:
        effective = p * (1 - p) / variance
    else:
        effective = float(answers)
    tail = 1 - alpha / 2
    return min(float(answers), effective * float(t.ppf(tail, answers - 1) / t.ppf(tail, items - 1)) ** 2)


def _exact(right: float, of: float, alpha: float) -> tuple[float, float]:
    """The interval of Clopper and Pearson, whose counts need not be whole."""
    from scipy.stats import beta

    low = float(beta.ppf(alpha / 2, right, of - right + 1)) if right > 0 else 0.0
    high = float(beta.ppf(1 - alpha / 2, right + 1, of - right)) if right < of else 1.0
    return low, high
