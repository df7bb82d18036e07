"""Steps with drafts over prescribed logits: a step samples, the sampler draws drafts, the next step verifies them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from attrs import evolve, frozen

from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.conformance.part import not_offered
from deepinfer_core.conformance.sampler.steps import Bench, Sampled, step_inputs
from deepinfer_core.errors import NotSupported
from deepinfer_core.records import SamplerInputs

POSITION = 20
"""Of the first token that the verifying step samples."""


class Proposals:
    """A ``DraftBlock`` with prescribed logits f32 ``[K, V]``, the same for all requests; checks how it is called."""

    def __init__(self, bench: Bench, logits: Any, n: int, first: Any) -> None:
        self._bench, self._logits, self._n = bench, np.asarray(logits, np.float32), n
        self._expected: Any = np.asarray(first)
        self._next = 0

    def step(self, k: int, previous: Any) -> tuple[Any, Any]:
        """Logits f32 ``[N, V]`` of draft ``k``, and a confidence of one half."""
        require_equal(k, self._next, "draft asked for the drafts of a block out of order")
        got = np.asarray(self._bench.backend.to_host(previous)).reshape(-1)
        require_equal(got.shape, (self._n,), "draft gave a block another number of tokens than requests")
        if k == 0:
            require_equal(got.tolist(), self._expected.tolist(), "the first draft does not follow the sampled token")
        self._next += 1
        confidence = self._bench.device(np.full((1, self._n), 0.5, np.float32))[0]
        return self._bench.device(np.tile(self._logits[k], (self._n, 1))), confidence


@frozen
class Verified:
    """What a request got from the verifying step."""

    drafts: list[int]
    accepted: int
    tokens: list[int]
    """Accepted drafts, then the token that ends the step."""


def with_drafts(bench: Any, vocab_size: int, num_draft: int, verify: str) -> Bench:
    """A sampler that draws and verifies drafts; skips the test where the plugin has none."""
    made: Bench = bench(vocab_size, draft_tokens=num_draft, verify=verify)
    if not hasattr(made.sampler, "draft"):
        not_offered("it draws no drafts")
    return made


def verifying_inputs(n: int, num_draft: int, **given: Any) -> SamplerInputs:
    """Of a decode step in which every request verifies ``num_draft`` drafts; request i has draft slot i + 1."""
    slots = np.arange(1, n + 1, dtype=np.int32)
    offset = np.tile(np.arange(num_draft + 1), n)
    rows = np.repeat(slots, num_draft + 1) * num_draft + offset
    return evolve(
        step_inputs(n, sample_pos=POSITION, **given),
        selected_rows=np.arange(n * (num_draft + 1), dtype=np.int32),
        first_row=np.arange(n, dtype=np.int32) * (num_draft + 1),
        row_count=np.full(n, num_draft + 1, np.int32),
        draft_rows=np.where(offset == num_draft, 0, rows).astype(np.int32),
        draft_write_slot=slots,
    )


def drafted_before(bench: Bench, drafter: Any, target: Any, n: int, **given: Any) -> Any:
    """Draft from ``drafter`` ``[K, V]`` behind a step of one row a request: what the sampler's ``draft`` returned.

    :param target: f32 ``[V]``, the logits of that step.
    """
    before = evolve(
        step_inputs(n, sample_pos=POSITION - 1, **given), draft_write_slot=np.arange(1, n + 1, dtype=np.int32)
    )
    first = bench.step(np.tile(target, (n, 1)), before)
    bound = before if getattr(bench.sampler, "host_inputs", False) else bench.backend.bind_inputs(before)
    try:
        return bench.sampler.draft(Proposals(bench, drafter, n, first.tokens), bound, first.output, len(drafter))
    except NotSupported as error:
        not_offered(error.what)


def verify(bench: Bench, drafter: Any, target: Any, n: int, **given: Any) -> list[Verified]:
    """Draft from ``drafter`` ``[K, V]``, verify against ``target`` ``[K + 1, V]``, for ``n`` requests."""
    drafter, target = np.asarray(drafter, np.float32), np.asarray(target, np.float32)
    num_draft = len(drafter)
    drawn = drafted_before(bench, drafter, target[-1], n, **given)
    require(isinstance(drawn, tuple) and len(drawn) == 2, "draft returned no pair (ids, confidences)", got=repr(drawn))
    ids = np.asarray(bench.backend.to_host(drawn[0]))
    require_equal(ids.shape, (n, num_draft), "draft ids have a wrong shape")
    inside = (ids >= -1) & (ids < bench.vocab_size)
    require(inside.all(), "a draft is outside the vocabulary", got=ids[~inside].tolist()[:4])
    if drawn[1] is not None:
        chances = np.asarray(bench.backend.to_host(drawn[1]))
        require_equal(chances.shape, (n, num_draft), "confidences have a wrong shape")
        require(((chances >= 0) & (chances <= 1)).all(), "a confidence is outside [0, 1]")
    out = bench.step(np.tile(target, (n, 1)), verifying_inputs(n, num_draft, **given))
    return list(_requests(out, ids.tolist(), num_draft))


def _requests(out: Sampled, drafts: Sequence[list[int]], num_draft: int) -> Iterator[Verified]:
    """The tokens of each request; fails where ids and counts contradict each other."""
    require(out.accepted is not None, "a step that verifies drafts reports no accepted counts")
    require(out.verified is not None, "a step that verifies drafts reports no verified_ids")
    n = len(drafts)
    require_equal(out.accepted.shape, (n,), "accepted has a wrong shape")
    require_equal(out.verified.shape, (n * (num_draft + 1),), "verified_ids has a wrong shape")
    for i, mine in enumerate(drafts):
        accepted = int(out.accepted[i])
        require(0 <= accepted <= num_draft, "accepted is not a number of drafts", request=i, got=accepted)
        rows = out.verified[i * (num_draft + 1) : (i + 1) * (num_draft + 1) - 1].tolist()
        want = mine[:accepted] + [-1] * (num_draft - accepted)
        require_equal(rows, want, "verified_ids are not the accepted drafts, then -1", request=i, accepted=accepted)
        if -1 in mine[:accepted]:
            fail("a draft of -1, which is none, was accepted", request=i)
        yield Verified(mine, accepted, [*rows[:accepted], int(out.tokens[i])])
