"""Verification of drafts: whatever the drafter says, tokens are the target's (``spec/sampling.md`` 2.7, 4.3)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.reference.sampling import distribution
from deepinfer_core.conformance.sampler.drafted import POSITION, Verified, verify, with_drafts
from deepinfer_core.conformance.sampler.steps import MAX_ROWS, Bench, random_logits, step_inputs
from deepinfer_core.conformance.statistics import require_distribution

pytestmark = pytest.mark.level("core")
VOCAB, DRAFTS = 6, 2
NEVER = -1e4
TARGET = [[0.2, 1.0, -0.5, 0.3, -1.0, 0.0], [1.1, -0.2, 0.4, -0.9, 0.6, 0.1], [0.0, 0.5, 1.0, -1.0, 0.2, -0.4]]
NEAR = [[0.5, 0.7, -0.2, 0.0, -0.8, 0.3], [0.6, 0.2, 0.1, -0.4, 0.9, -0.3]]


def only(*tokens: int) -> list[float]:
    return [0.0 if token in tokens else NEVER for token in range(VOCAB)]


def run(made: Bench, drafter: Any, target: Any = TARGET, count: int = 4096, **given: Any) -> list[Verified]:
    done: list[Verified] = []
    for first in range(0, count, MAX_ROWS):
        done += verify(made, drafter, target, MAX_ROWS, seed=np.arange(first, first + MAX_ROWS), **given)
    return done


def require_targets(done: list[Verified], target: Any = TARGET, **given: Any) -> None:
    """The token at each place follows the target's distribution of that place, given that the place was reached."""
    for place in range(DRAFTS + 1):
        tokens = [one.tokens[place] for one in done if len(one.tokens) > place]
        if len(tokens) >= 200:
            require_distribution(
                tokens, distribution(target[place], **given), "behind verification", place=place, requests=len(done)
            )


CASES = {
    "near": NEAR,
    "the_same": TARGET[:DRAFTS],
    "far": [[-value for value in row] for row in TARGET[:DRAFTS]],
    "one_hot": [only(3), only(5)],
    "one_token_it_never_wants": [only(4), only(3)],
}


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
@pytest.mark.parametrize("case", CASES)
def test_tokens_follow_the_target_whatever_the_drafter(bench: Any, case: Any, mode: Any) -> None:
    made = with_drafts(bench, VOCAB, DRAFTS, mode)
    done = run(made, CASES[case])
    require_targets(done)
    rate = sum(one.accepted > 0 for one in done) / len(done)
    if case == "the_same":
        require(rate > 0.99, "drafts from the target's own distribution are rejected", accepted=rate)
    if mode == "rejection" and case == "near":
        overlap = sum(map(min, distribution(NEAR[0]), distribution(TARGET[0])))
        spread = 5 * math.sqrt(overlap * (1 - overlap) / len(done))
        require(abs(rate - overlap) < spread, "drafts are accepted too often or too rarely", got=rate, expected=overlap)


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_filters_hold_behind_verification(bench: Any, mode: Any) -> None:
    case: dict[str, Any] = {"temperature": 0.7, "top_p": 0.8, "top_k": 3}
    require_targets(run(with_drafts(bench, VOCAB, DRAFTS, mode), NEAR, **case), **case)


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_drafts_that_the_target_cannot_say_are_never_accepted(bench: Any, mode: Any) -> None:
    made = with_drafts(bench, VOCAB, DRAFTS, mode)
    target = [only(0, 1), only(0, 1), only(2)]
    done = run(made, [only(4, 5), only(4, 5)], target, count=1024)
    require_equal({one.accepted for one in done}, {0}, "a draft of probability 0 was accepted")
    require_targets(done, target)


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_certain_target_takes_its_token(bench: Any, mode: Any) -> None:
    target = [only(2), only(3), only(1)]
    done = run(with_drafts(bench, VOCAB, DRAFTS, mode), NEAR, target, count=1024)
    require({tuple(one.tokens) for one in done} <= {(2,), (2, 3), (2, 3, 1)}, "a certain token was not chosen")


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_block_that_proposes_nothing_changes_no_token(bench: Any, mode: Any) -> None:
    """NaN where the second draft should be: there is none, -1, and it is not accepted."""
    made = with_drafts(bench, VOCAB, DRAFTS, mode)
    done = run(made, [NEAR[0], [math.nan] * VOCAB], count=2048)
    require_targets(done)
    require(any(one.drafts[1] == -1 for one in done), "a draft came from a row of NaN")
    require(all(one.accepted < 2 for one in done), "a draft that is none was accepted")


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_greedy_accepts_the_best_tokens_only(bench: Any, mode: Any) -> None:
    made = with_drafts(bench, VOCAB, DRAFTS, mode)
    best = [int(np.argmax(row)) for row in TARGET]
    other = [(token + 1) % VOCAB for token in best]
    for drafts, accepted in [
        ((best[0], best[1]), 2),
        ((best[0], other[1]), 1),
        ((other[0], best[1]), 0),
        ((other[0], other[1]), 0),
    ]:
        for one in run(made, [only(drafts[0]), only(drafts[1])], count=MAX_ROWS, temperature=0.0):
            require_equal(one.drafts, list(drafts), "a greedy draft is not the block's best token")
            require_equal(one.tokens, best[: accepted + 1], "greedy verification gives other tokens than greedy rows")


def test_coupled_tokens_are_those_of_a_run_without_drafts(bench: Any) -> None:
    """Exactly: with coupled noise speculation changes nothing but the number of steps."""
    made = with_drafts(bench, VOCAB, DRAFTS, "coupled")
    plain = bench(VOCAB, verify="coupled")
    seeds = np.arange(MAX_ROWS)
    alone = [
        plain.step(
            np.tile(np.asarray(row, np.float32), (MAX_ROWS, 1)),
            step_inputs(MAX_ROWS, seed=seeds, sample_pos=POSITION + j),
        )
        for j, row in enumerate(TARGET)
    ]
    for i, one in enumerate(verify(made, NEAR, TARGET, MAX_ROWS, seed=seeds)):
        want = [int(alone[j].tokens[i]) for j in range(len(one.tokens))]
        require_equal(one.tokens, want, "a coupled token differs from the run without drafts", request=i)


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_requests_of_a_verifying_step_do_not_feel_each_other(bench: Any, mode: Any) -> None:
    made = with_drafts(bench, VOCAB, DRAFTS, mode)
    together = verify(made, NEAR, TARGET, 33, seed=np.arange(33))
    for i in (0, 7, 32):
        alone = verify(made, NEAR, TARGET, 1, seed=np.array([i]))
        require_equal(alone[0].tokens, together[i].tokens, "alone and in a batch the tokens differ", request=i)


@pytest.mark.level("full")
@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_random_pairs_of_distributions_keep_the_target(bench: Any, mode: Any) -> None:
    made = with_drafts(bench, VOCAB, DRAFTS, mode)
    for seed in range(6):
        drafter = random_logits(DRAFTS, VOCAB, seed=seed, spread=1.5)
        target = random_logits(DRAFTS + 1, VOCAB, seed=100 + seed, spread=1.5).tolist()
        require_targets(run(made, drafter, target), target)


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_drafts_follow_the_parameters_of_their_request(bench: Any, mode: Any) -> None:
    """A drafter's proposal goes through the request's own temperature and filters."""
    made = with_drafts(bench, VOCAB, DRAFTS, mode)
    case: dict[str, Any] = {"temperature": 0.6, "top_k": 2}
    drafts = [one.drafts[0] for one in run(made, NEAR, **case)]
    require_distribution(drafts, distribution(NEAR[0], **case), "drafts of a filtered request")
