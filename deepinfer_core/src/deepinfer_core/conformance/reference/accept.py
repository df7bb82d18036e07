"""Verification of drafts, one request after the other in fp64 (``spec/sampling.md`` 2.7).

Where a verdict hangs on a number so close to its limit that the last bits of an exponential decide, the reference says
so (``certain``), and a test must not judge what follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from attrs import define, frozen

from deepinfer_core.conformance.reference import sampling_rows as sampling
from deepinfer_core.conformance.reference.sampling import key, mixed

F64 = npt.NDArray[np.float64]

KEEP = math.exp(-5e-5)
NOISE_CASE = 3
CLOSE = 2.0**-20
"""Distance from a boundary, as a share of the mass, below which two backends may differ (``sampling.md`` 2.5)."""
CLOSE_RATIO, CLOSE_NOISE = 1e-5, 1e-4


@frozen
class Row:
    """One row: its target log-probabilities (fp64, -inf: dropped), draft (-1: none) and its log-probabilities."""

    logq: F64
    greedy: bool
    seed: int
    position: int
    draft: int = -1
    logp: F64 | None = None
    forced: int = -1


@define
class Verdict:
    """What a row gives: a token, whether it takes its draft, the chance of that, and whether all of it is certain."""

    token: int
    accept: bool
    chance: float
    certain: bool


@define
class Outcome:
    """What a request gives. ``certain``: every row that counts is."""

    sampled: int
    accepted: int
    verified: list[int]
    chances: list[float]
    stopped: bool
    certain: bool


def noise(seed: int, position: int, vocab: int) -> F64:
    """Gumbel noise of the coupled rule."""
    base = key(seed, position, NOISE_CASE)
    hashes = [mixed((base + v * sampling.G) & sampling.MASK64) for v in range(vocab)]
    u = np.array([((h >> 40) + 0.5) * 2.0**-24 for h in hashes])
    gumbel: F64 = -np.log(-np.log(u))
    return gumbel


def judge(row: Row, mode: Literal["rejection", "coupled"], *, last: bool) -> Verdict:
    draft = -1 if last else row.draft
    if row.greedy:
        token = int(np.argmax(row.logq))
        out = Verdict(token, token == draft, float(token == draft), True)
    elif mode == "coupled":
        noisy = row.logq + noise(row.seed, row.position, len(row.logq))
        token = int(np.argmax(noisy))
        gap = noisy[token] - np.partition(noisy, -2)[-2]
        out = Verdict(token, token == draft, float(token == draft), bool(gap > CLOSE_NOISE))
    else:
        out = _rejection(row, draft, last)
    if row.forced >= 0:
        out.token, out.accept, out.certain = row.forced, row.forced == draft, True
        if mode == "coupled" or row.greedy:
            out.chance = float(out.accept)
    if last:
        out.accept, out.chance = False, 1.0
    return out


def _rejection(row: Row, draft: int, last: bool) -> Verdict:
    if last or row.logp is None:
        token, distance = sampling.draw(sampling.weights(np.exp(row.logq)), key(row.seed, row.position, 0))
        return Verdict(token, False, 0.0, distance > CLOSE)
    q, p = np.exp(row.logq), np.exp(row.logp)
    rest = np.maximum(q - p * KEEP, 0) if draft >= 0 else q
    mass = rest.sum()
    token, distance = sampling.draw(sampling.weights(rest / mass), key(row.seed, row.position, 1))
    chance = max(1 - mass, 0.0)
    if draft < 0:
        return Verdict(token, False, chance, distance > CLOSE)
    u = sampling.uniform(sampling.accept_key(row.seed, row.position))
    ratio = math.exp(min(row.logq[draft] - row.logp[draft], 0.0))
    doubt = 0 < ratio < 1 and abs(u - ratio) < CLOSE_RATIO
    if u < ratio:
        return Verdict(draft, True, chance, not doubt)
    return Verdict(token, False, chance, not doubt and distance > CLOSE)


def verify(rows: Sequence[Row], mode: Literal["rejection", "coupled"], stops: Sequence[int] = ()) -> Outcome:
    """One request: drafts up to the first refusal, then one token more. ``rows``: all but the last verify a draft."""
    verdicts = [judge(row, mode, last=i == len(rows) - 1) for i, row in enumerate(rows)]
    accepted = next(i for i, v in enumerate(verdicts) if not v.accept)
    tokens = [v.token for v in verdicts[: accepted + 1]]
    return Outcome(
        sampled=tokens[-1],
        accepted=accepted,
        verified=tokens[:-1] + [-1] * (len(rows) - accepted),
        chances=[v.chance for v in verdicts],
        stopped=any(t in stops for t in tokens if t >= 0),
        certain=all(v.certain for v in verdicts[: accepted + 1]),
    )
