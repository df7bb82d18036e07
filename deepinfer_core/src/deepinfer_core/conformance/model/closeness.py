"""When two rows of logits count as the same.

Bit for bit where the backend says that a row's result does not depend on its batch (``feature:batch_invariant``).
Elsewhere rounding may differ with the shape of a step: nearly all rows must have nearly the same distribution.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from deepinfer_core.conformance.failures import fail, require, require_equal

USUAL, WORST = 0.02, 0.3
"""Total variation between the distributions of two rows: of 95 in 100 of them, and of any."""


def is_invariant(backend: Any) -> bool:
    """Whether the backend promises equal bits."""
    can = backend.capabilities
    return "batch_invariant" in can.features or bool(can.determinism.get("batch_invariant", False))


def require_same_rows(got: Any, want: Any, backend: Any, what: str, **facts: object) -> None:
    """Fail unless ``got`` and ``want``, logits ``[T, V]``, are the same rows."""
    __tracebackhide__ = True
    require_equal(got.shape, want.shape, f"{what}: another shape", **facts)
    if np.array_equal(got, want, equal_nan=True):
        return
    different = np.flatnonzero((got != want).any(axis=1))
    if is_invariant(backend):
        row = int(different[0])
        column = int(np.flatnonzero(got[row] != want[row])[0])
        fail(
            what,
            **facts,
            worst=f"row {row} of {len(got)}, {len(different)} rows differ",
            got=float(got[row, column]),
            expected=float(want[row, column]),
            limit="bit for bit: the backend is batch invariant",
        )
    distance = 0.5 * np.abs(softmax(got) - softmax(want)).sum(axis=1)
    usual = float(np.quantile(distance, 0.95))
    require(
        usual <= USUAL and float(distance.max()) <= WORST,
        what,
        **facts,
        worst=f"row {int(distance.argmax())} of {len(got)}",
        got=f"total variation {usual:.3g} of 95 in 100 rows, {float(distance.max()):.3g} at most",
        limit=f"{USUAL} and {WORST}",
    )


def softmax(logits: Any) -> Any:
    """Rows as distributions, float64; a row without a finite value becomes NaN and is near nothing."""
    values = logits.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.exp(values - values.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)
