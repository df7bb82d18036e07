"""What a logits filter keeps to, whatever it changes (``interfaces.LogitsFilter``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.interfaces import LogitsFilter

pytestmark = pytest.mark.hook("deepinfer_logits_filter_create")

VOCAB = 70
PLACES = [0, 1, 2, 17, 1023, 131_072]


def rows(count: int, vocab_size: int = VOCAB, seed: int = 1, *, forbidden: bool = True) -> Any:
    """f32 ``[count, vocab_size]``, a third of it -inf; every row keeps a token."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, 3.0, (count, vocab_size)).astype(np.float32)
    if forbidden:
        barred = rng.random(logits.shape) < 1 / 3
        barred[np.arange(count), rng.integers(0, vocab_size, count)] = False
        logits[barred] = -np.inf
    return logits


def apply(made: LogitsFilter, logits: Any, positions: Sequence[int]) -> Any:
    """The result, checked for its form. The filter gets a copy, as it does from the core."""
    given, places = logits.copy(), list(positions)
    changed = made.apply(given, places)
    require_equal(places, list(positions), "apply changed the positions")
    changed = np.asarray(changed)
    require_equal(changed.shape, logits.shape, "apply returned another shape")
    require_equal(str(changed.dtype), "float32", "apply returned another dtype")
    require(not np.isnan(changed).any(), "apply returned NaN", row=_first(np.isnan(changed)))
    require(not np.isposinf(changed).any(), "apply returned +inf", row=_first(np.isposinf(changed)))
    revived = np.isneginf(logits) & ~np.isneginf(changed)
    require(not revived.any(), "a forbidden token (-inf) came back", row_and_token=_first(revived))
    return changed


def _first(where: Any) -> tuple[int, ...] | None:
    found = np.argwhere(where)
    return tuple(found[0].tolist()) if len(found) else None


@pytest.mark.level("smoke")
@pytest.mark.parametrize("vocab_size", [1, 2, 33, 1000])
def test_filter_of_any_vocabulary_keeps_shape_dtype_and_what_is_forbidden(make_filter: Any, vocab_size: Any) -> None:
    made = make_filter(vocab_size)
    require(isinstance(made, LogitsFilter), "it is no LogitsFilter")
    for count in (1, 2, 6):
        apply(made, rows(count, vocab_size), PLACES[:count])
        apply(made, rows(count, vocab_size, forbidden=False), PLACES[:count])


@pytest.mark.level("core")
def test_rows_of_extremes_keep_their_form(make_filter: Any) -> None:
    """Scaling, subtracting a maximum or taking a softmax of such rows makes NaN where it is not guarded."""
    made = make_filter(VOCAB)
    for value in (0.0, -0.0, 1e30, -1e30, 3.4e38, -3.4e38, 1e-45):
        apply(made, np.full((1, VOCAB), value, np.float32), [5])
    mixed = np.tile(np.array([3.4e38, -3.4e38], np.float32), VOCAB // 2)[None]
    apply(made, mixed, [5])
    single = np.full((VOCAB, VOCAB), -np.inf, np.float32)
    np.fill_diagonal(single, 1.0)
    apply(made, single, range(VOCAB))


@pytest.mark.level("core")
def test_row_without_any_token_stays_one(make_filter: Any) -> None:
    """A row that nothing can be sampled from may reach a filter."""
    apply(make_filter(VOCAB), np.full((2, VOCAB), -np.inf, np.float32), [3, 4])


@pytest.mark.level("core")
def test_row_does_not_depend_on_the_rows_beside_it(make_filter: Any) -> None:
    """Rows of a verification of drafts: a request without drafts has the same rows one by one."""
    made, logits = make_filter(VOCAB), rows(6)
    together = apply(made, logits, PLACES)
    for i, place in enumerate(PLACES):
        alone = apply(made, logits[i : i + 1], [place])
        require(np.array_equal(alone[0], together[i]), "a row alone is changed in another way", row=i)
    order = [3, 0, 5, 1, 4, 2]
    mixed = apply(made, logits[order], [PLACES[i] for i in order])
    require(np.array_equal(mixed, together[order]), "another order of rows changes them in another way")


@pytest.mark.level("core")
def test_requests_that_share_the_filter_do_not_feel_each_other(make_filter: Any) -> None:
    """One object serves every request of the same parameters, and requests take turns."""
    shared = make_filter(VOCAB)
    texts = {request: [rows(1, seed=10 * request + step) for step in range(4)] for request in range(3)}
    want = {}
    for request, steps in texts.items():
        own = make_filter(VOCAB)
        want[request] = [apply(own, logits, [20 + step]) for step, logits in enumerate(steps)]
    for step in range(4):
        for request in (2, 0, 1):
            got = apply(shared, texts[request][step], [20 + step])
            require(
                np.array_equal(got, want[request][step]),
                "what it did for other requests changes a row",
                request=request,
                step=step,
            )


@pytest.mark.level("core")
def test_same_row_gives_the_same_bits_again(make_filter: Any) -> None:
    made, logits = make_filter(VOCAB), rows(6)
    first = apply(made, logits, PLACES)
    for other in (made, make_filter(VOCAB)):
        require(np.array_equal(apply(other, logits, PLACES), first), "a repeated call gives another result")


@pytest.mark.level("core")
def test_result_is_nobody_elses(make_filter: Any) -> None:
    """Not a buffer that the next call writes, and not something that the caller may spoil."""
    made, logits = make_filter(VOCAB), rows(3)
    result = made.apply(logits.copy(), [1, 2, 3])
    kept = np.array(result, copy=True)
    made.apply(rows(3, seed=9), [1, 2, 3])
    require(np.array_equal(np.asarray(result), kept), "the next call changed the result of the one before")
    np.asarray(result)[:] = 7.0
    require(np.array_equal(apply(made, logits, [1, 2, 3]), kept), "writing into a result changed the filter")


@pytest.mark.level("core")
def test_unknown_parameter_is_refused_with_its_name(make_filter: Any, part: Any) -> None:
    unknown = "no_such_parameter_of_any_filter"
    try:
        make_filter(VOCAB, {**part.params, unknown: 1})
    except Exception as error:  # whatever it raises ends the request that brought the parameter
        require(unknown in str(error) + str(error.__cause__ or ""), "the error does not name the parameter", got=error)
        return
    fail("a parameter that it does not know was taken", remedy="raise ValueError for parameters that are not used")
