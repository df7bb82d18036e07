"""``sample.best`` and ``sample.choose``: several steps of the sampler in one launch, where a backend offers it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance.backend.sampling_cases import expected_row, params_of, require_drawn, signed
from deepinfer_core.conformance.bitwise import require_row_invariant
from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.model_sizes import RELEASED
from deepinfer_core.conformance.reference import sampling_rows as reference
from deepinfer_core.conformance.reference.sampling import key, mixed

BEST, CHOOSE = "sample.best", "sample.choose"
SETTINGS = [
    (1.0, 1.0, -1, None),
    (0.7, 1.0, -1, None),
    (5.0, 1.0, -1, None),
    (1.0, 0.6, -1, None),
    (1.0, 1e-6, -1, None),
    (1.0, 1.0, 5, None),
    (0.3, 1.0, 1, None),
    (1.0, 1.0, -1, 0.05),
    (0.8, 0.9, 40, 0.01),
    (1.0, 0.5, 3, None),
    (2.0, 0.999, 1000, None),
]
"""Temperature, top-p, top-k and min-p; no greedy row, which needs no draw."""
KINDS = ("spread", "peaked", "flat", "equal", "few values", "masked", "one token")
NOISE_CASE = 3
NOISE_BAND = 1e-5
"""Two tokens whose sums are this near to each other may change places by the last bits of a logarithm."""


def rows_of(kind: str, rows: int, vocab: int, generator: torch.Generator) -> Tensor:
    """Logits f32 of distributions that are hard in their own way."""
    drawn = torch.randn(rows, vocab, generator=generator)
    if kind == "flat":  # more neighbours within a small factor than fit into any list
        return drawn * 0.01
    if kind == "equal":
        return torch.zeros(rows, vocab)
    if kind == "few values":
        return (drawn * 2).round()
    if kind == "masked":
        hidden = torch.rand(rows, vocab, generator=generator) < 0.9
        hidden[:, vocab // 3] = False
        return (drawn * 3).masked_fill(hidden, -math.inf)
    if kind == "one token":
        drawn.fill_(-math.inf)
        drawn[:, vocab // 2] = 1.0
        return drawn
    return drawn * (8 if kind == "peaked" else 2)


def choose(
    backend: Any, device: Any, logits: Tensor, settings: list[Any], keys: Tensor, *, coupled: bool = False
) -> tuple[Tensor, Tensor]:
    """The op's tokens and log-probabilities, on the host."""
    vocab = logits.shape[1]
    temperature, top_p, top_k, min_p = zip(*settings, strict=True)
    params = SimpleNamespace(
        temperature=torch.tensor(temperature, dtype=torch.float32, device=device),
        min_p=torch.tensor([p or 0.0 for p in min_p], dtype=torch.float32, device=device),
        top_p=torch.tensor([int(np.float32(p) * 2.0**31) for p in top_p], device=device),
        top_k=torch.tensor([k if 0 < k < vocab else vocab for k in top_k], device=device),
    )
    peaks = logits.amax(1).to(device)
    tokens, logprobs = backend.ops[CHOOSE](logits.to(device), peaks, params, keys.to(device), coupled=coupled)
    require_equal((tokens.dtype, logprobs.dtype), (torch.int64, torch.float32), "dtypes", op=CHOOSE)
    return tokens.cpu(), logprobs.cpu()


@pytest.mark.op(BEST)
@pytest.mark.needs(f"op:{BEST}")
@pytest.mark.parametrize("vocab", [1, 2, 31, 1000, 1527, RELEASED.vocab])
def test_the_best_token_is_the_highest_the_lowest_id_and_the_first_nan(
    backend: Any, device: Any, generator: Any, vocab: int
) -> None:
    logits = torch.randn(9, vocab + 3, generator=generator)
    logits[1] = 0.0
    logits[1, vocab // 2] = -0.0
    logits[2, [0, vocab - 1]] = math.nan
    logits[3] = -math.inf
    logits[4, vocab - 1] = math.inf
    logits[5, vocab:] = 99.0  # what lies behind the row is not part of it
    logits[6] = (logits[6] * 2).round()
    logits[7, vocab - 1] = math.nan
    for view in (logits[:, :vocab], logits[:, :vocab].contiguous(), logits[:0, :vocab]):
        ids, values = backend.ops[BEST](view.to(device) if view.is_contiguous() else logits.to(device)[:, :vocab])
        expected = [_best(row) for row in view.tolist()]
        require_equal(ids.cpu().tolist(), expected, "best tokens", op=BEST, vocab=vocab)
        got = values.cpu()
        wanted = torch.tensor([row[i] for row, i in zip(view.tolist(), expected, strict=True)])
        require(bool(torch.allclose(got, wanted, rtol=0, atol=0, equal_nan=True)), "their logits", op=BEST, got=got)


def _best(row: list[float]) -> int:
    for i, value in enumerate(row):
        if math.isnan(value):
            return i
    return row.index(max(row))


@pytest.mark.op(CHOOSE)
@pytest.mark.needs(f"op:{CHOOSE}")
@pytest.mark.parametrize("vocab", [1, 7, 1527, 1536])
@pytest.mark.parametrize("kind", KINDS)
def test_chosen_tokens_are_the_canonical_ones_of_the_filtered_row(
    backend: Any, device: Any, generator: Any, tolerance: Any, kind: str, vocab: int
) -> None:
    judge(backend, device, tolerance, rows_of(kind, len(SETTINGS), vocab, generator), kind)


@pytest.mark.op(CHOOSE)
@pytest.mark.needs(f"op:{CHOOSE}")
@pytest.mark.parametrize("kind", ["spread", "flat", "equal"])
def test_chosen_tokens_of_the_released_vocabulary_are_the_canonical_ones(
    backend: Any, device: Any, generator: Any, tolerance: Any, kind: str
) -> None:
    judge(backend, device, tolerance, rows_of(kind, len(SETTINGS), RELEASED.vocab, generator), kind, doubtful=2)


def judge(backend: Any, device: Any, tolerance: Any, logits: Tensor, kind: str, doubtful: int = 1) -> None:
    """Against the log-probabilities of the op ``sample.logprobs`` where they hold, and those against the reference."""
    __tracebackhide__ = True
    seeds, positions = list(range(50, 50 + len(logits))), list(range(900, 900 + len(logits)))
    numbers = signed([key(s, p) for s, p in zip(seeds, positions, strict=True)], "cpu")
    tokens, logprobs = choose(backend, device, logits, SETTINGS, numbers)
    filtered = backend.ops["sample.logprobs"](logits.to(device), params_of(SETTINGS, device)).cpu()
    expected = torch.stack(
        [expected_row(logits[i], SETTINGS[i], filtered[i], op=CHOOSE, kind=kind, row=i) for i in range(len(logits))]
    )
    require_drawn(tokens, expected, seeds, positions, 0, op=CHOOSE, kind=kind, doubtful=doubtful)
    tolerance(CHOOSE)(logprobs, expected.gather(1, tokens.unsqueeze(1)).squeeze(1), case=kind)


@pytest.mark.op(CHOOSE)
@pytest.mark.needs(f"op:{CHOOSE}")
@pytest.mark.parametrize("vocab", [5, 1527, 1536])
def test_coupled_tokens_are_the_best_after_noise(
    backend: Any, device: Any, generator: Any, tolerance: Any, vocab: int
) -> None:
    logits = rows_of("spread", len(SETTINGS), vocab, generator)
    seeds = list(range(len(logits)))
    numbers = [key(s, 77, NOISE_CASE) for s in seeds]
    tokens, logprobs = choose(backend, device, logits, SETTINGS, signed(numbers, "cpu"), coupled=True)
    for i, setting in enumerate(SETTINGS):
        scaled, _, kept = reference.logprobs(logits[i].numpy(), *setting)
        values = reference.log_softmax(scaled, kept)
        hashes = [mixed(numbers[i] + v * reference.G & reference.MASK64) >> 40 for v in range(vocab)]
        sums = values - np.log(-np.log((np.array(hashes) + 0.5) * 2.0**-24))
        best = int(sums.argmax())
        token = int(tokens[i])
        if token != best:
            require(sums[best] - sums[token] < NOISE_BAND, "another token is chosen than the best after noise",
                    op=CHOOSE, row=i, got=token, expected=best, params=setting)  # fmt: skip
        tolerance(CHOOSE)(logprobs[i], torch.tensor(values[token]), case=f"row {i}, coupled")


@pytest.mark.op(CHOOSE)
@pytest.mark.needs(f"op:{CHOOSE}", "feature:deterministic_sampling")
def test_a_chosen_token_does_not_depend_on_its_batch(backend: Any, device: Any, generator: Any) -> None:
    logits = rows_of("spread", len(SETTINGS), 700, generator)
    numbers = signed([key(s, 5) for s in range(len(logits))], "cpu")

    def run(rows: Tensor) -> Tensor:
        picked = rows.tolist()
        tokens, logprobs = choose(backend, device, logits[picked], [SETTINGS[i] for i in picked], numbers[picked])
        return torch.stack([tokens.double(), logprobs.double()], 1)

    require_row_invariant(CHOOSE, run, len(SETTINGS), generator)
