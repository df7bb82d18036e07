"""Rows that cannot be sampled are reported, and the others go on (``interfaces.Sampler``, ``spec/sampling.md`` 2.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.sampler.steps import masks, random_logits, step_inputs
from deepinfer_core.records import RowStatus

pytestmark = pytest.mark.level("core")
VOCAB = 40


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.5, "top_k": 4, "min_p": 0.1}], ids=["plain", "filtered"])
def test_row_with_nan_is_reported_and_the_others_go_on(bench: Any, temperature: Any, filters: Any) -> None:
    made, logits = bench(VOCAB), random_logits(9, VOCAB, seed=1)
    given = {"temperature": temperature, "seed": np.arange(9), **filters}
    clean = made.step(logits, step_inputs(9, **given))
    for columns in ([0], [VOCAB - 1], list(range(VOCAB))):
        broken = logits.copy()
        broken[4, columns] = np.nan
        out = made.step(broken, step_inputs(9, **given))
        others = [i for i in range(9) if i != 4]
        require_equal(int(out.status[4]), int(RowStatus.NAN_LOGITS), "NaN in a row was not reported", columns=columns)
        require_equal(out.status[others].tolist(), [0] * 8, "NaN in a row ended other requests")
        require_equal(out.tokens[others].tolist(), clean.tokens[others].tolist(), "NaN in a row changed other tokens")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_in_which_nothing_is_allowed_is_reported(bench: Any, temperature: Any) -> None:
    """By a mask: NO_ALLOWED_TOKEN. Without one, where the model itself left no finite logit: either fault."""
    made, logits = bench(VOCAB), random_logits(5, VOCAB, seed=2)
    logits[1] = -np.inf
    given = masks(5, VOCAB, r3=[])
    out = made.step(logits, step_inputs(5, temperature=temperature, seed=np.arange(5), **given))
    require_equal(int(out.status[3]), int(RowStatus.NO_ALLOWED_TOKEN), "a row whose mask is empty was not reported")
    require(int(out.status[1]) != RowStatus.OK, "a row of -inf only was not reported")
    require_equal(out.status[[0, 2, 4]].tolist(), [0] * 3, "a row without tokens ended other requests")


def test_mask_that_leaves_only_forbidden_tokens_is_a_dead_end(bench: Any) -> None:
    """The one token that the grammar allows is -inf already."""
    logits = random_logits(2, VOCAB, seed=3)
    logits[0, 33] = -np.inf
    out = bench(VOCAB).step(logits, step_inputs(2, **masks(2, VOCAB, r0=[33])))
    require_equal(
        out.status.tolist(), [int(RowStatus.NO_ALLOWED_TOKEN), int(RowStatus.OK)], "a dead end was not reported"
    )


def test_step_in_which_every_row_is_broken_raises_nothing(bench: Any) -> None:
    out = bench(VOCAB).step(np.full((3, VOCAB), np.nan, np.float32), step_inputs(3))
    require_equal(out.status.tolist(), [int(RowStatus.NAN_LOGITS)] * 3, "row_status is wrong")


def test_faulty_step_leaves_no_trace_in_the_next(bench: Any) -> None:
    made, logits = bench(VOCAB), random_logits(6, VOCAB, seed=4)
    before = made.step(logits, step_inputs(6, seed=np.arange(6))).tokens
    made.step(np.full((6, VOCAB), np.nan, np.float32), step_inputs(6))
    after = made.step(logits, step_inputs(6, seed=np.arange(6))).tokens
    require_equal(after.tolist(), before.tolist(), "a faulty step changed the next one")
