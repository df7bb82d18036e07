"""Verification lengths against brute force and ``sorted`` (``spec/engine.md`` 7, invariants 33 and 34)."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.varlen import VerifyLengths

from deepinfer_native import reference_verify as reference
from deepinfer_native.errors import ArgumentError
from deepinfer_native.verify import cumulative, verify_lengths, verify_total

FIXED = settings(derandomize=True, deadline=None, max_examples=200)
TIES = st.sampled_from([0.0, 1e-30, 1e-9, 0.25, 0.5, 0.999, 1.0])
ANY = st.floats(0, 1, width=32)


@st.composite
def values(draw):
    n, k = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    item = draw(st.sampled_from([TIES, ANY]))
    return cumulative(np.array(draw(st.lists(item, min_size=n * k, max_size=n * k)), np.float32).reshape(n, k))


@st.composite
def curves(draw, most):
    sizes = sorted({*draw(st.lists(st.integers(1, most + 4), max_size=8)), most + draw(st.integers(0, 3))})
    times = st.one_of(st.sampled_from([1.0, 2.0, 3.0]), st.floats(0.01, 50))
    ms = draw(st.lists(times, min_size=len(sizes), max_size=len(sizes)))
    return sizes, ms if draw(st.booleans()) else sorted(ms)


@given(st.data(), values(), st.sampled_from([0.0, 0.01, 3.0]), st.sampled_from([0.0, 0.4]))
@FIXED
def test_total_equals_the_brute_force_over_every_total(data, v, slope, sampler_ms):
    n, k = v.shape
    sizes, ms = data.draw(curves(n * (k + 1)))
    got = verify_total(v, sizes, ms, slope=slope, sampler_ms=sampler_ms)
    assert got == reference.total(v, sizes, ms, slope, sampler_ms)


@given(st.data(), values())
@FIXED
def test_lengths_equal_the_sorted_list_and_sum_to_the_total(data, v):
    n, k = v.shape
    total = data.draw(st.integers(n, n * (k + 1)))
    got = verify_lengths(v, total).tolist()
    assert got == reference.lengths(v, total)
    assert sum(got) == total


@given(st.data(), values())
@FIXED
def test_lengths_take_a_prefix_whose_values_are_the_largest(data, v):
    n, k = v.shape
    total = data.draw(st.integers(n, n * (k + 1)))
    lengths = verify_lengths(v, total)
    taken = [float(v[i, j]) for i in range(n) for j in range(lengths[i] - 1)]
    left = [float(v[i, j]) for i in range(n) for j in range(lengths[i] - 1, k)]
    assert min(taken, default=1) >= max(left, default=0)


def test_total_at_many_requests_equals_the_brute_force():
    rng = np.random.default_rng(5)
    v = cumulative(rng.random((300, 5)))
    sizes = [*range(8, 1801, 8)]
    ms = [2 + 0.004 * s for s in sizes]
    total = verify_total(v, sizes, ms, slope=0.0001, sampler_ms=0.2)
    assert 300 < total < 1800
    assert total == reference.total(v, sizes, ms, 0.0001, 0.2)
    assert verify_lengths(v, total).tolist() == reference.lengths(v, total)


TIMES = {
    "flat": lambda rng, n: np.ones(n),
    "rising": lambda rng, n: 3 + np.arange(n) * 0.05,
    "steps": lambda rng, n: 1 + np.arange(n) // 8 * 0.4,
    "falling at the end": lambda rng, n: np.where(np.arange(n) < n * 7 // 8, 2.0, 0.5),
    "anything": lambda rng, n: rng.uniform(0.5, 3, n),
    "two values": lambda rng, n: rng.choice([1.0, 2.0], n),
}


@pytest.mark.parametrize("times", TIMES)
def test_total_of_a_curve_of_many_sizes_equals_the_brute_force(times):
    """Stretches of the curve are passed over by a bound of their quotients, never one that has the first largest."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(16, 40))
        v = cumulative(rng.choice([0.0, 0.5, 0.9, 1.0], (n, 5)) if seed % 2 else rng.random((n, 5)))
        sizes = [*sorted(rng.choice(np.arange(1, 6 * n), 5 * n, replace=False).tolist()), 6 * n]
        ms, slope = TIMES[times](rng, len(sizes)).tolist(), float(rng.choice([0, 0.01]))
        assert verify_total(v, sizes, ms, slope=slope) == reference.total(v, sizes, ms, slope), seed


def test_total_of_a_curve_with_every_size_equals_the_brute_force():
    rng = np.random.default_rng(9)
    v = cumulative(rng.uniform(0.3, 0.95, (700, 6)))
    sizes = list(range(1, 4901))
    ms = (5 + 0.004 * np.arange(4900) + 0.3 * rng.random(4900)).tolist()
    assert verify_total(v, sizes, ms) == reference.total(v, sizes, ms)


@pytest.mark.parametrize(
    ("value", "counted"),
    [(1 / 4096, 1), (np.nextafter(np.float32(1 / 4096), np.float32(0)), 1), (0.000_24, 0), (1, 2048)],
)
def test_budget_counts_whole_units_rounded_half_up_in_float32(value, counted):
    """The second one is rounded up with its sum, as floats are."""
    values = np.array([[value]], np.float32)
    assert reference.units(values).tolist() == [[counted]]
    assert verify_total(values, [1, 2], [1.0, 1.0]) == (2 if counted else 1)


def test_budget_does_not_depend_on_the_order_of_requests():
    rng = np.random.default_rng(8)
    values = cumulative(rng.random((300, 5)))
    sizes, ms = list(range(1, 1801)), np.cumsum(rng.random(1800)).tolist()
    totals = {verify_total(rng.permutation(values), sizes, ms, sampler_ms=300.0) for _ in range(20)}
    assert len(totals) == 1


@pytest.mark.parametrize("seed", range(20))
def test_budget_of_the_reference_scheduler_is_that_of_the_core(seed):
    """Times that grow as the chances do, so that neighbouring totals are close calls."""
    rng = np.random.default_rng(seed)
    values = cumulative(rng.random((12, 5)))
    sizes = list(range(1, 73))
    ms = [12.0] * 12 + (12 + np.cumsum(np.sort(values.reshape(-1))[::-1])).tolist()
    model = VerifyLengths(SimpleNamespace(verify_lengths="confidence", num_draft=5))
    model.set_curve(sizes, [x + i * 1e-9 for i, x in enumerate(ms)])
    assert model.total(values.tolist()) == verify_total(values, model.sizes, model.ms)


def test_cumulative_counts_what_is_no_probability_as_none():
    got = cumulative([[0.5, float("nan"), 1.0], [2.0, -1.0, 0.5]])
    assert got.tolist() == [[0.5, 0.0, 0.0], [1.0, 0.0, 0.0]]


GOOD = np.array([[0.5, 0.25]], np.float32)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: verify_total(GOOD, [1, 2], [1, 1]), "sizes"),
        (lambda: verify_total(GOOD, [3, 3], [1, 1]), "sizes"),
        (lambda: verify_total(GOOD, [0, 3], [1, 1]), "sizes"),
        (lambda: verify_total(GOOD, [], []), "sizes"),
        (lambda: verify_total(GOOD, [3], [0.0]), "ms"),
        (lambda: verify_total(GOOD, [3], [float("nan")]), "ms"),
        (lambda: verify_total(GOOD, [3], [1, 2]), "ms"),
        (lambda: verify_total(GOOD, [3], [1], slope=-1), "slope"),
        (lambda: verify_total(GOOD, [3], [1], sampler_ms=float("inf")), "sampler_ms"),
        (lambda: verify_total(GOOD[:, ::-1], [3], [1]), "values"),
        (lambda: verify_total(GOOD + 1, [3], [1]), "values"),
        (lambda: verify_total(-GOOD * 0, [3], [1]), "values"),
        (lambda: verify_total(GOOD[0], [3], [1]), "values"),
        (lambda: verify_lengths(GOOD, 0), "total"),
        (lambda: verify_lengths(GOOD, 4), "total"),
        (lambda: verify_lengths(np.zeros((1, 16)), 4), "k"),
    ],
)
def test_an_argument_outside_its_bounds_is_named(call, field):
    with pytest.raises(ArgumentError) as refused:
        call()
    assert refused.value.field == field
