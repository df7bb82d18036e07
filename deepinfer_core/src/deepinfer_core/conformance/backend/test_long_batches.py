"""A row of a long batch is what the same row is in a short one: no tile, grid or buffer ends before the batch does.

Short batches are held to fp64 by the tests of each op; here the two are compared, in the class of the op.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance.backend.long_batches import CASES, Rows
from deepinfer_core.conformance.bitwise import require_same_bytes
from deepinfer_core.conformance.failures import require_equal
from deepinfer_core.conformance.tolerances import check

PART = 60
PARAMS = [pytest.param(ops, id=ops.replace(" ", "+"), marks=pytest.mark.op(*ops.split())) for ops in CASES]


def require_rows_alike(backend: Any, device: Any, generator: torch.Generator, ops: str, count: int) -> None:
    __tracebackhide__ = True
    make, classes = CASES[ops]
    run = make(Rows(backend, device, generator, count))
    whole = run(slice(0, count))
    require_equal(len(whole), len(classes), "number of tensors in the result", op=ops)
    for begin in range(0, count, PART):
        rows = slice(begin, min(begin + PART, count))
        for place, (long, short, spec) in enumerate(zip(whole, run(rows), classes, strict=True)):
            require_equal(long.shape[0], count, "rows of the result", op=ops, output=place)
            _compare(long[rows], short, spec, op=ops, output=place, rows=f"{begin} to {rows.stop} of {count}")


def _compare(long: Tensor, short: Tensor, spec: str, *, rows: str, **facts: Any) -> None:
    __tracebackhide__ = True
    what = "rows of a long batch are others than in a short one"
    if spec in ("B", "S"):
        require_same_bytes(long, short, what, **facts, rows=rows)
    elif spec.startswith("C"):
        check(long, short.cpu().double(), spec, rows=True, rows_compared=rows, **facts)
    else:
        check(long, short.cpu().double(), spec, rows_compared=rows, **facts)


@pytest.mark.parametrize("ops", PARAMS)
def test_rows_of_a_long_batch_are_those_of_short_ones(
    backend: Any, device: Any, generator: torch.Generator, ops: str
) -> None:
    require_rows_alike(backend, device, generator, ops, 300)


@pytest.mark.level("full")
@pytest.mark.parametrize("ops", PARAMS)
def test_rows_of_a_very_long_batch_are_those_of_short_ones(
    backend: Any, device: Any, generator: torch.Generator, ops: str
) -> None:
    require_rows_alike(backend, device, generator, ops, 2085)
