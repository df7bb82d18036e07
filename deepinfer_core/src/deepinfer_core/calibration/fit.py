"""Coefficients of a `CostModel` from measured steps: non-negative least squares of relative errors.

The coefficients are few (at most four, and one for each attention kind), and the best non-negative ones are the
plain least-squares solution over the columns that are not zero (the Karush-Kuhn-Tucker conditions). So all sets of
columns are tried with ``numpy.linalg.lstsq``, and the best solution without a negative value is the exact optimum: at
most 2**12 solves of a few dozen rows, no iteration, no tolerance, and no dependency for one function. With equal
residuals the smaller set wins, so that columns that say the same do not share a cost.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deepinfer_core.calibration.measure import Point

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from deepinfer_native import AttentionKind, CostModel

MAX_COLUMNS = 12
NOISE = 1e-3
"""A column must lower the squared residual by this share to be used."""


def nonnegative_least_squares(
    a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], most: npt.NDArray[np.float64] | None = None
) -> npt.NDArray[np.float64]:
    """x >= 0 with the least ``|a @ x - b|``. ``a``: [rows, columns], at most ``MAX_COLUMNS`` columns; ``b``: [rows].

    ``most``: [columns]; a set of columns that asks for more of one gets this much, and competes with what is left.
    """
    import numpy as np

    columns = a.shape[1]
    if not 1 <= columns <= MAX_COLUMNS:
        raise ValueError(f"{columns} columns, from 1 to {MAX_COLUMNS} can be tried")
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0] = 1  # a column of zeros explains nothing and gets 0
    most = np.full(columns, np.inf) if most is None else most * scale
    best, least = np.zeros(columns), float(b @ b)
    for size in range(1, columns + 1):
        for chosen in itertools.combinations(range(columns), size):
            picked = list(chosen)
            x = np.linalg.lstsq(a[:, picked] / scale[picked], b, rcond=None)[0]
            if (x < 0).any():
                continue
            x = np.minimum(x, most[picked])
            residual = a[:, picked] / scale[picked] @ x - b
            if float(residual @ residual) < least * (1 - NOISE):
                best, least = np.zeros(columns), float(residual @ residual)
                best[picked] = x / scale[picked]
    return best


def fit(points: Sequence[Point], kinds: Sequence[AttentionKind], keep: int = 0) -> tuple[CostModel, float]:
    """A model for steps of one kind, and its relative error (root mean square) at the points.

    ``keep``: rows of a prompt that the decoder half runs; 0: all.
    """
    import numpy as np

    from deepinfer_native import AttentionKind, CostModel
    from deepinfer_native.cost import MAX_PAIR_NS, MAX_TIME_NS

    # Rows of one decode step are in proportion to its requests: there is no column for them.
    names = ["base_ns", "seq_ns"]
    if points[0].kind == "prefill":
        names += ["row_ns", "kept_ns"] if keep else ["row_ns"]
    table: list[list[Any]] = []
    for p in points:
        start, floor = p.end - p.q, max(0, p.full_len - keep) if p.full_len else 0
        first = max(start, min(floor, p.end - 1))
        table.append([1, p.n, p.n * p.q, p.n * (p.end - first)][: len(names)])
        table[-1] += [p.n * (_kept_pairs(k, first, p.end, floor) if k.kept else k.pairs(start, p.end)) for k in kinds]
    measured = np.array([p.ns for p in points], dtype=np.float64)
    a = np.array(table, dtype=np.float64) / measured[:, None]
    # Short contexts have few pairs, which could take over the time of the whole step, beyond what a pair may cost.
    most = np.array([MAX_TIME_NS] * len(names) + [MAX_PAIR_NS] * len(kinds))
    x = nonnegative_least_squares(a, np.ones(len(points)), most)
    error = float(np.sqrt(np.mean((a @ x - 1) ** 2)))
    attention = tuple(
        AttentionKind(k.ratio, k.cap, k.shift, k.block, float(v), kept=k.kept)
        for k, v in zip(kinds, x[len(names) :], strict=True)
        if v > 0
    )
    times = dict(zip(names, x.tolist(), strict=False))
    return CostModel(**times, keep=keep if "kept_ns" in times else 0, attention=attention), error


def _kept_pairs(kind: AttentionKind, first: int, end: int, floor: int) -> int:
    """Of the kept rows ``[first, end)``: windows begin at ``floor``, and a row that stays in front of it has none."""
    if kind.shift and first < floor:
        return 0
    return kind.pairs(first, end, floor)
