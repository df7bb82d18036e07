"""Parameters and distributions for tests of sampling ops, and rules for numbers that two backends may round apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer_core.conformance.failures import fail
from deepinfer_core.conformance.reference import sampling_rows as reference
from deepinfer_core.conformance.reference.sampling import key

MASS_BAND = 1e-4
"""A token whose exclusive mass is this near to top_p may be kept or not (``spec/sampling.md`` 2.3)."""
MIN_P_BAND = 1e-5


def params_of(rows: Sequence[tuple[float, float, int, float | None]], device: Any, **more: Any) -> SimpleNamespace:
    """Temperature, top-p, top-k and min-p of each row as tensors; min_p None where no row has one."""
    temperature, top_p, top_k, min_p = zip(*rows, strict=True) if rows else ((), (), (), ())

    def f32(values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    lowest = None if all(p is None for p in min_p) else f32([p or 0.0 for p in min_p])
    return SimpleNamespace(
        temperature=f32(temperature), top_p=f32(top_p),
        top_k=torch.tensor(top_k, dtype=torch.int32, device=device), min_p=lowest, **more,
    )  # fmt: skip


def signed(seeds: Sequence[int], device: Any) -> Tensor:
    """64-bit patterns as int64."""
    return torch.tensor([s - (1 << 64) if s >= 1 << 63 else s for s in seeds], dtype=torch.int64, device=device)


def expected_row(
    logits: Tensor, setting: tuple[float, float, int, float | None], got: Tensor, **facts: object
) -> Tensor:
    """The reference's log-probabilities of one row, fp64, on the set of tokens that ``got`` kept.

    :raises ConformanceFailure: that set differs by a token that is not at the border of top-p or min-p.
    """
    __tracebackhide__ = True
    temperature, top_p, top_k, min_p = setting
    scaled, before, kept = reference.logprobs(logits.numpy(), temperature, top_p, top_k, min_p)
    mine = (got > -math.inf).numpy()
    for token in np.flatnonzero(mine != kept).tolist():
        near_p = abs(before[token] - top_p) < MASS_BAND
        top = scaled.max()
        near_min = min_p is not None and abs(math.exp(scaled[token] - top) / min_p - 1) < MIN_P_BAND
        if not near_p and not near_min:
            fail("another set of tokens is kept than the reference keeps", **facts, worst=token,
                 got="kept" if mine[token] else "dropped", expected="kept" if kept[token] else "dropped",
                 mass_before=before[token], top_p=top_p)  # fmt: skip
    return torch.from_numpy(reference.log_softmax(scaled, mine if mine.any() else kept))


def drawn(logprobs: Tensor, seed: int, position: int, case: int) -> tuple[int, float]:
    """Token of the reference and its distance from the next boundary; without weights the most probable, lowest id."""
    p = torch.exp(logprobs.float()).nan_to_num(nan=0.0)
    token, distance = reference.draw(reference.weights(p.numpy()), key(seed, position, case))
    return (int(p.argmax()), 1.0) if token < 0 else (token, distance)


def require_drawn(
    got: Tensor, logprobs: Tensor, seeds: Sequence[int], positions: Sequence[int], case: int, *,
    doubtful: int = 0, **facts: object,
) -> None:  # fmt: skip
    """Fail unless each row's token is the canonical one.

    :param doubtful: Rows that may be so near to a boundary that the last bit of a probability decides
        (``spec/sampling.md`` 2.5: 2^-20 of the mass); those are not judged.
    """
    __tracebackhide__ = True
    near = 0
    for row, token in enumerate(got.cpu().tolist()):
        expected, distance = drawn(logprobs[row], seeds[row], positions[row], case)
        if token == expected:
            continue
        near += distance < 2.0**-20
        if distance >= 2.0**-20 or near > doubtful:
            fail("another token is drawn than the canonical one", **facts, row=row, got=token, expected=expected,
                 seed=hex(seeds[row]), position=positions[row], case=case, distance=distance)  # fmt: skip
