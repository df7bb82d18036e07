"""``sample.verify``: drafts taken or refused, and one token more for each request (``spec/sampling.md`` 2.7)."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance import tolerances
from deepinfer_core.conformance.backend.sampling_cases import params_of, signed
from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.reference import accept as reference
from deepinfer_core.conformance.reference import sampling_rows as sampling
from deepinfer_core.conformance.reference.sampling import GREEDY_BELOW

OP = "sample.verify"
Mode = Literal["rejection", "coupled"]
MODES = ["rejection", "coupled"]
FLOATS = "A(1e-4, 1e-5)"
FIELDS = ("accept_prob", "accepted", "sampled_ids", "sampled_logprob", "stopped", "verified_ids", "verified_logprob")

pytestmark = [pytest.mark.op(OP), pytest.mark.needs(f"op:{OP}")]


class Step:
    """Rows of some requests: logits, drafts with their distributions, settings, seeds; and what has to come out."""

    def __init__(self, counts: list[int], logits: Tensor, *, tokens: list[int] | None = None,
                 logp: Tensor | None = None, settings: Any = None, seeds: list[int] | None = None,
                 positions: list[int] | None = None, forced: list[int] | None = None,
                 stops: list[list[int]] | None = None) -> None:  # fmt: skip
        self.counts, self.logits, self.tokens, self.logp = counts, logits, tokens, logp
        rows = sum(counts)
        self.settings = settings or [(1.0, 1.0, -1, None)] * rows
        owner = [i for i, n in enumerate(counts) for _ in range(n)]
        self.seeds = seeds or [1000 + i for i in owner]
        self.positions = positions or [50 + sum(owner[:t].count(i) for i in [owner[t]]) for t in range(rows)]
        self.forced, self.stops = forced, stops
        self.first = [sum(counts[:i]) for i in range(len(counts) + 1)]

    def run(self, backend: Any, device: Any, mode: Mode) -> dict[str, Tensor]:
        params = params_of(
            self.settings, device, seeds=signed(self.seeds, device),
            positions=torch.tensor(self.positions, dtype=torch.int32, device=device),
            first_row=torch.tensor(self.first, dtype=torch.int32, device=device),
        )  # fmt: skip
        draft = None
        if self.tokens is not None:
            tokens = torch.tensor(self.tokens, dtype=torch.int32, device=device)
            draft = SimpleNamespace(tokens=tokens, logprobs=None if self.logp is None else self.logp.to(device))
        options = {}
        for name, value in (("forced", self.forced), ("stop_ids", self.stops)):
            if value is not None:
                options[name] = torch.tensor(value, dtype=torch.int32, device=device)
        got: dict[str, Tensor] = backend.ops[OP](self.logits.to(device), params, draft, mode=mode, **options)
        require(set(FIELDS) <= set(got), "a field is missing", op=OP, got=sorted(got), expected=list(FIELDS))
        return {name: value.cpu() for name, value in got.items()}

    def row(self, t: int, logq: np.ndarray) -> reference.Row:
        logp = None if self.logp is None else self.logp[t].double().numpy()
        return reference.Row(
            logq, self.settings[t][0] < GREEDY_BELOW, self.seeds[t], self.positions[t],
            -1 if self.tokens is None else self.tokens[t], logp, -1 if self.forced is None else self.forced[t],
        )  # fmt: skip

    def judge(self, got: dict[str, Tensor], mode: Mode, *, doubtful: int = 0, **facts: object) -> None:
        """Request by request; ``doubtful`` ones may hang on a last bit and are then not judged."""
        __tracebackhide__ = True
        skipped = 0
        for i, (begin, end) in enumerate(zip(self.first, self.first[1:], strict=False)):
            target = []
            for t in range(begin, end):
                scaled, _, kept = sampling.logprobs(self.logits[t].numpy(), *self.settings[t])
                target.append(sampling.log_softmax(scaled, kept))
            rows = [self.row(t, target[t - begin]) for t in range(begin, end)]
            stops = [s for s in self.stops[i] if s >= 0] if self.stops is not None else []
            expected = reference.verify(rows, mode, stops)
            if not expected.certain and skipped < doubtful:
                skipped += 1
                continue
            where = {**facts, "op": OP, "mode": mode, "request": i}
            require_equal(got["verified_ids"][begin:end].tolist(), expected.verified, "verified ids", **where)
            require_equal(int(got["accepted"][i]), expected.accepted, "accepted drafts", **where)
            require_equal(int(got["sampled_ids"][i]), expected.sampled, "the last token", **where)
            require_equal(bool(got["stopped"][i]), expected.stopped, "whether the request ends", **where)
            taken = expected.accepted
            logprobs = [target[j][v] for j, v in enumerate(expected.verified[:taken])]
            wanted = torch.tensor([*logprobs, *[0.0] * (end - begin - taken)], dtype=torch.float64)
            tolerances.check(got["verified_logprob"][begin:end], wanted, FLOATS, part="verified_logprob", **where)
            last = torch.tensor(target[taken][expected.sampled], dtype=torch.float64)
            tolerances.check(got["sampled_logprob"][i], last, FLOATS, part="sampled_logprob", **where)
            chances = torch.tensor(expected.chances, dtype=torch.float64)
            tolerances.check(got["accept_prob"][begin:end], chances, FLOATS, part="accept_prob", **where)


def random_step(generator: torch.Generator, counts: list[int], vocab: int, *, greedy_every: int = 0) -> Step:
    """Drafts drawn near the target, some of them none, and settings that differ from request to request."""
    rows = sum(counts)
    logits = torch.randn(rows, vocab, generator=generator) * 2
    logp = torch.log_softmax(logits + torch.randn(rows, vocab, generator=generator) * 0.4, 1)
    tokens = torch.multinomial(logp.exp(), 1, generator=generator).flatten()
    tokens[torch.rand(rows, generator=generator) < 0.1] = -1
    settings: list[Any] = []
    for i, count in enumerate(counts):
        hot = 0.0 if greedy_every and i % greedy_every == 0 else (1.0, 0.7, 1.3)[i % 3]
        settings += [(hot, (1.0, 0.9)[i % 2], (-1, 20)[i % 3 == 1], None)] * count
    return Step(counts, logits, tokens=tokens.tolist(), logp=logp, settings=settings)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("vocab", [5, 64, 1536])
def test_drafts_are_judged_request_by_request(
    backend: Any, device: Any, generator: Any, mode: Mode, vocab: int
) -> None:
    counts = [1, 3, 6, 2, 1, 4, 6] if vocab < 1000 else [3, 1, 4]
    step = random_step(generator, counts, vocab, greedy_every=3)
    step.judge(step.run(backend, device, mode), mode, doubtful=1, case=f"{vocab} tokens")


@pytest.mark.level("smoke")
@pytest.mark.parametrize("mode", MODES)
def test_greedy_requests_take_drafts_that_are_the_best_token(backend: Any, device: Any, mode: Mode) -> None:
    best = [1, 2, 3, 4, 1, 0, 2, 3, 2, 2]
    logits = torch.nn.functional.one_hot(torch.tensor(best), 5).float()
    step = Step([3, 1, 4, 2], logits, tokens=[1, 0, -1, -1, 1, 4, 2, -1, 2, -1], logp=torch.full((10, 5), 0.2).log(),
                settings=[(0.0, 1.0, -1, None)] * 10, stops=[[1, -1], [0, -1], [4, 0], [3, -1]])  # fmt: skip
    got = step.run(backend, device, mode)
    step.judge(got, mode, case="stops")
    require_equal(got["sampled_ids"].tolist(), [2, 4, 0, 2], "last tokens", op=OP)
    require_equal(got["accepted"].tolist(), [1, 0, 1, 1], "accepted", op=OP)
    require_equal(got["stopped"].tolist(), [True, False, True, False], "stopped", op=OP)


@pytest.mark.level("smoke")
@pytest.mark.parametrize("mode", MODES)
def test_forced_tokens_come_out_and_accept_equal_drafts_only(
    backend: Any, device: Any, generator: Any, mode: Mode
) -> None:
    for greedy_every in (0, 2):
        step = random_step(generator, [3, 2, 4, 1], 9, greedy_every=greedy_every)
        tokens = list(step.tokens or [])
        tokens[0], tokens[1], tokens[5] = 4, 5, 3
        step.tokens = tokens
        step.forced = [4, 5, -1, -1, 2, 8, -1, -1, 1, 7]
        step.stops = [[5, 4], [-1, -1], [8, -1], [7, 2]]
        step.judge(step.run(backend, device, mode), mode, doubtful=1, case=f"greedy every {greedy_every}")


@pytest.mark.level("smoke")
@pytest.mark.parametrize("mode", MODES)
def test_without_drafts_every_request_gives_one_token(backend: Any, device: Any, generator: Any, mode: Mode) -> None:
    step = random_step(generator, [1, 1, 1, 1], 40)
    step.tokens = step.logp = None
    step.judge(step.run(backend, device, mode), mode, doubtful=1, case="one row each")


@pytest.mark.level("smoke")
def test_a_draft_that_may_not_come_is_refused_whatever_the_key(backend: Any, device: Any, generator: Any) -> None:
    """The least key gives u = 0: a draft of probability zero, say forbidden by a grammar, must not pass for that."""
    position, vocab = 50, 8
    logits = torch.randn(2, vocab, generator=generator)
    logits[0, 3] = -math.inf
    logp = torch.log_softmax(torch.zeros(2, vocab), 1)
    for h in (0, 1, 2**11 - 1):
        seed = sampling.seed_of_accept_key(h, position)
        step = Step([2], logits, tokens=[3, -1], logp=logp, seeds=[seed] * 2, positions=[position, position + 1])
        got = step.run(backend, device, "rejection")
        require_equal(got["accepted"].tolist(), [0], "a draft of probability 0 was taken", op=OP, key=hex(h))
        step.judge(got, "rejection", case=f"key {h}")


@pytest.mark.level("smoke")
def test_a_draft_that_the_target_prefers_is_taken_whatever_the_key(backend: Any, device: Any, generator: Any) -> None:
    """The greatest key gives the largest u below 1: a draft that is as probable in the target is taken all the same."""
    position, vocab = 50, 8
    logits = torch.zeros(2, vocab)
    logits[0, 3] = 2.0
    logp = torch.log_softmax(torch.zeros(2, vocab), 1)
    seed = sampling.seed_of_accept_key(2**64 - 1, position)
    step = Step([2], logits, tokens=[3, -1], logp=logp, seeds=[seed] * 2, positions=[position, position + 1])
    got = step.run(backend, device, "rejection")
    require_equal(got["accepted"].tolist(), [1], "a draft of ratio 1 was refused", op=OP)
    step.judge(got, "rejection", case="greatest key")


@pytest.mark.level("smoke")
def test_a_draft_equal_to_its_target_is_nearly_always_taken(backend: Any, device: Any, generator: Any) -> None:
    """p = q: every draft is taken, and the chance says so up to the constant that keeps the residual alive."""
    logits = torch.randn(12, 30, generator=generator)
    logp = torch.log_softmax(logits, 1)
    tokens = torch.multinomial(logp.exp(), 1, generator=generator).flatten().tolist()
    step = Step([6, 6], logits, tokens=tokens, logp=logp)
    got = step.run(backend, device, "rejection")
    require_equal(got["accepted"].tolist(), [5, 5], "drafts taken where p is q", op=OP)
    chances = got["accept_prob"].view(2, 6)[:, :5]
    require(bool((chances > 1 - 6e-5).all() and (chances < 1 - 4e-5).all()), "the chance where p is q", op=OP,
            got=chances.tolist(), expected="1 - 5e-5")  # fmt: skip


def test_coupled_tokens_do_not_depend_on_the_drafts(backend: Any, device: Any, generator: Any) -> None:
    """What comes out is the same with good drafts, bad ones and none: only how much of it at once."""
    logits = torch.randn(6, 50, generator=generator)
    plain = Step([1] * 6, logits, seeds=[7] * 6, positions=list(range(50, 56))).run(backend, device, "coupled")
    tokens = plain["sampled_ids"].tolist()
    for right in range(6):
        drafts = [t if j < right else (t + 1) % 50 for j, t in enumerate(tokens)]
        step = Step([6], logits, tokens=drafts, seeds=[7] * 6, positions=list(range(50, 56)))
        got = step.run(backend, device, "coupled")
        out = [*got["verified_ids"][:right].tolist(), int(got["sampled_ids"][0])]
        require_equal(out, tokens[: right + 1], "tokens with drafts", op=OP, case=f"{right} right drafts")


@pytest.mark.needs("feature:deterministic_sampling")
@pytest.mark.parametrize("mode", MODES)
def test_a_request_gives_the_same_alone_and_in_a_batch(backend: Any, device: Any, generator: Any, mode: Mode) -> None:
    counts = [2, 1, 5, 3, 6]
    whole = random_step(generator, counts, 70, greedy_every=4)
    together = whole.run(backend, device, mode)
    for i, (begin, end) in enumerate(zip(whole.first, whole.first[1:], strict=False)):
        part = slice(begin, end)
        tokens, logp = whole.tokens or [], whole.logp
        alone = Step(
            [counts[i]], whole.logits[part], tokens=tokens[part], logp=None if logp is None else logp[part],
            settings=whole.settings[part], seeds=whole.seeds[part], positions=whole.positions[part],
        ).run(backend, device, mode)  # fmt: skip
        for name in FIELDS:
            per_row = name in ("verified_ids", "verified_logprob", "accept_prob")
            mine = together[name][part] if per_row else together[name][i : i + 1]
            require(torch.equal(mine, alone[name]), "a request gives something else alone", op=OP, mode=mode,
                    request=i, field=name, got=alone[name].tolist(), expected=mine.tolist())  # fmt: skip


@pytest.mark.level("full")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(12))
def test_random_drafts_are_judged_request_by_request(
    backend: Any, device: Any, rng: Any, mode: Mode, seed: int
) -> None:
    generator = rng(2600 + seed)
    counts = torch.randint(1, 8, (30,), generator=generator).tolist()
    step = random_step(generator, counts, (6, 33, 200)[seed % 3], greedy_every=seed % 5)
    if seed % 3 == 0:
        step.forced = torch.randint(-3, 6, (sum(counts),), generator=generator).clamp(min=-1).tolist()
        step.stops = torch.randint(-1, 6, (30, 3), generator=generator).tolist()
    step.judge(step.run(backend, device, mode), mode, doubtful=2, case=f"{sum(counts)} rows")
