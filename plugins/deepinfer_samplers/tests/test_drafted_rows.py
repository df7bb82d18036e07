"""Verification with everything else on: the same answer as one row at a time, whatever the drafts are.

The "model" is a table of logits by position, so a token depends on the tokens before it through penalties alone; masks,
biases and end tokens differ from row to row of a verification as the core and the grammar would make them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import samplers_oracle as oracle
import torch
from samplers_drafting import Block, drafting_sampler, inputs_of, propose
from samplers_sequence import history

from deepinfer_core.requests.request_parts import RequestParts
from deepinfer_samplers.canonical import CanonicalSampler

V, K, LENGTH, WIDE = 40, 4, 24, 3
PROMPTS = [[1, 2, 3], [4, 4, 9], [7, 8, 1]]
N = len(PROMPTS)
PENALTIES = {
    "repetition_penalty": [1.3, 1.0, 1.6],
    "presence_penalty": [0.0, 0.5, -0.5],
    "frequency_penalty": [0.4, -1.0, 0.0],
}


class LastOf:
    """A row sampler that takes the highest id of the three best."""

    def sample(self, logits: Any, draws: Any) -> list[int]:
        return [max(np.argsort(row)[-3:].tolist()) for row in logits]


def table(seed: int) -> torch.Tensor:
    return torch.randn(N, LENGTH + K + 1, V, generator=torch.Generator().manual_seed(seed)) * 2


def allowed(request: int, at: int) -> list[int]:
    return [token for token in range(V) if (token + request + at) % 3]


def extras(rows: list[tuple[int, int]], counts: list[int]) -> dict[str, Any]:
    """Bias, suppressed tokens and masks of ``rows`` (request, place in the answer)."""
    given: dict[str, Any] = {
        "bias": np.array([[r, (5 * at + i) % V] for r, (i, at) in enumerate(rows)], np.int32),
        "bias_value": np.array([0.5 + at % 3 for _, at in rows], np.float32),
        "eos_suppress": np.array([[r, at % V] for r, (_, at) in enumerate(rows)], np.int32),
    }
    masks, listed, first = [], [], np.cumsum(counts) - counts
    for j in range(max(counts)):
        have = [i for i, count in enumerate(counts) if j < count and i != 1]  # request 1 has no grammar
        mask = np.zeros((N, -(-V // 32)), np.int32)
        for i in have:
            mask[i] = oracle.words(allowed(*rows[first[i] + j]), mask.shape[1])
        masks.append(mask)
        listed.append(np.array(have, np.int32))
    return {**given, "grammar_mask": masks, "grammar_rows": listed}


def step(sampler: CanonicalSampler, logits: Any, inputs: Any, late: dict[str, Any], parts: Any) -> Any:
    for name, value in late.items():
        is_plain = name in ("grammar_mask", "grammar_rows", "max_top_logprobs") or isinstance(value, np.ndarray)
        setattr(inputs, name, value if is_plain else np.asarray(value, np.int32))
    return sampler.sample_with(logits, inputs, parts) if parts else sampler.sample(logits, inputs)


def one_by_one(logits: torch.Tensor, parts: Any, **given: Any) -> Any:
    """Tokens, log-probabilities and alternatives of each request, a row at a time."""
    sampler = CanonicalSampler(V, is_coupled=True)
    tokens: list[list[int]] = [[] for _ in range(N)]
    told: list[list[Any]] = [[] for _ in range(N)]
    for at in range(LENGTH):
        late = {**extras([(i, at) for i in range(N)], [1] * N), "row_slot": range(N), "max_top_logprobs": WIDE}
        late |= history(*[(p, []) for p in PROMPTS]) if at == 0 else {}
        inputs = inputs_of(N, 0, None, sample_pos=3 + at, **PENALTIES, **given)
        inputs.draft_write_slot = None
        out = step(sampler, logits[:, at], inputs, late, parts)
        for i in range(N):
            tokens[i].append(int(out.sampled_ids[i]))
            told[i].append((out.sampled_logprob[i].tobytes(), out.top_ids[i].tolist(), out.top_logprobs[i].tobytes()))
    return tokens, told


def with_drafts(logits: torch.Tensor, plain: list[list[int]], parts: Any, stream: int, **given: Any) -> Any:
    """The same with verification; drafts are the right tokens up to a random place, then wrong ones."""
    sampler = drafting_sampler(V, K, N, is_coupled=True)
    random = np.random.default_rng(stream)
    tokens: list[list[int]] = [[] for _ in range(N)]
    told: list[list[Any]] = [[] for _ in range(N)]
    accepted_all = 0
    for count in range(10 * LENGTH):
        if min(map(len, tokens)) >= LENGTH:
            return tokens, told, accepted_all
        places = [min(len(t), LENGTH - 1) for t in tokens]
        rows_of = random.integers(1, K + 2, N).tolist()
        proposals = np.full((K, N, V), -9.0, np.float32)
        for i, place in enumerate(places):
            right = int(random.integers(0, K + 1))
            for k in range(K):
                expected = plain[i][place + k] if place + k < LENGTH else 0
                proposals[k, i, expected if k < right else (expected + 1) % V] = 9.0
        positions = np.array(places) + 3
        propose(sampler, Block(proposals), N, sample_pos=positions - 1, temperature=0.0)
        rows = [(i, places[i] + j) for i in range(N) for j in range(rows_of[i])]
        late = {**extras(rows, rows_of), "row_slot": range(N), "max_top_logprobs": WIDE}
        # A request that has its tokens is sampled on at its last place, from a history that goes there.
        over = [len(t) >= LENGTH for t in tokens]
        starts = [
            (p, t[:place]) if count == 0 or done else ([], [])
            for p, t, place, done in zip(PROMPTS, tokens, places, over, strict=True)
        ]
        late |= history(*starts) if any(p for p, _ in starts) else {}
        inputs = inputs_of(N, K, rows_of, sample_pos=positions, **PENALTIES, **given)
        out = step(sampler, torch.stack([logits[i, at] for i, at in rows]), inputs, late, parts)
        first = np.cumsum(rows_of) - rows_of
        for i in range(N):
            accepted = int(out.accepted[i])
            accepted_all += accepted
            for j in range(accepted):
                r = first[i] + j
                tokens[i].append(int(out.verified_ids[r]))
                told[i].append(
                    (
                        out.verified_logprob[r].tobytes(),
                        out.verified_top_ids[r].tolist(),
                        out.verified_top_logprobs[r].tobytes(),
                    )
                )
            tokens[i].append(int(out.sampled_ids[i]))
            told[i].append((out.sampled_logprob[i].tobytes(), out.top_ids[i].tolist(), out.top_logprobs[i].tobytes()))
            if (out.verified_top_ids[first[i] + accepted : first[i] + rows_of[i]] != -1).any():
                raise AssertionError("alternatives of rows that do not count")
    raise AssertionError("no end")


GIVEN = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 0.8, "seed": [3, 4, 5]},
    "mixed": {"temperature": [0.0, 1.0, 0.7], "top_k": 8},
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_drafts_change_no_token_logprob_or_alternative(seed: int, given: dict[str, Any]) -> None:
    logits = table(seed)
    plain, told = one_by_one(logits, {}, **given)
    drafted, drafted_told, accepted = with_drafts(logits, plain, {}, seed, **given)
    assert accepted > 0
    for i in range(N):
        assert drafted[i][:LENGTH] == plain[i]
        assert drafted_told[i][:LENGTH] == told[i]
        assert i == 1 or all(token in allowed(i, at) for at, token in enumerate(plain[i]))


def test_row_sampler_accepts_a_draft_that_it_chooses_itself() -> None:
    logits, given = table(9), {"temperature": 0.9, "seed": [3, 4, 5]}
    parts = {0: RequestParts(sampler=("last", LastOf())), 2: RequestParts(sampler=("last", LastOf()))}
    plain, _ = one_by_one(logits, parts, **given)
    drafted, _, accepted = with_drafts(logits, plain, parts, 1, **given)
    assert accepted > 0
    assert [tokens[:LENGTH] for tokens in drafted] == plain


def test_row_sampler_under_rejection_takes_no_part_in_it() -> None:
    sampler = drafting_sampler(V, K, 1)
    logits = table(3)[0, : K + 1]
    right = [max(np.argsort(row)[-3:].tolist()) for row in logits.numpy()]
    proposals = np.full((K, 1, V), -9.0, np.float32)
    for k in range(K):
        proposals[k, 0, right[k] if k < 2 else 0] = 9.0
    propose(sampler, Block(proposals), 1, sample_pos=[4], temperature=0.0)
    inputs = inputs_of(1, K, [K + 1], sample_pos=[5])
    out = sampler.sample_with(logits, inputs, {0: RequestParts(sampler=("last", LastOf()))})
    assert out.accepted.tolist() == [2]
    assert out.verified_ids.tolist() == [*right[:2], -1, -1, -1]
    assert out.sampled_ids.tolist() == [right[2]]
