"""min-p, top-p and top-k: examples for people, then every combination against the plain version."""

import numpy as np
import pytest
import samplers_oracle as oracle
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samplers_step import logits_of

from deepinfer_samplers.filters import Filters, process

HALVES = logits_of(0.5, 0.25, 0.125, 0.125)


def processed(logits, temperature=1.0, min_p=0.0, top_p=1.0, top_k=-1):
    x = torch.tensor([logits], dtype=torch.float32)
    width = x.shape[1]
    top_k = width if top_k < 1 else min(top_k, width)
    return process(
        x,
        x.amax(-1),
        Filters(
            temperature=torch.tensor([temperature]),
            min_p=torch.tensor([min_p]) if min_p else None,
            ordered=torch.tensor([0]) if top_p < 1 or top_k < width else None,
            top_p=torch.tensor([int(np.floor(np.float64(np.float32(top_p)) * 2**31))]),
            top_k=torch.tensor([top_k]),
        ),
    )


def survivors(logits, **filters):
    return processed(logits, **filters).probabilities[0].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (1e-9, [0]),
        (0.49, [0]),
        (0.5, [0, 1]),  # mass exactly equal to top_p admits the next token
        (0.74, [0, 1]),
        (0.75, [0, 1, 2]),
        (0.76, [0, 1, 2]),
        (0.874, [0, 1, 2]),
        (0.875, [0, 1, 2, 3]),
        (1.0, [0, 1, 2, 3]),
    ],
)
def test_top_p_keeps_tokens_until_the_mass_before_exceeds_it(top_p, expected):
    assert survivors(HALVES, top_p=top_p) == expected


def test_top_p_ties_across_the_boundary_keep_the_lower_ids():
    assert survivors([0.0, 1.0, 1.0, 1.0, 1.0], top_p=0.3) == [1, 2]
    assert survivors([2.0] * 8, top_p=0.5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("top_k", "expected"), [(1, [1]), (2, [1, 3]), (3, [0, 1, 3]), (4, [0, 1, 2, 3]), (5, None)])
def test_top_k_ties_keep_the_lower_ids(top_k, expected):
    assert survivors([1.0, 2.0, 1.0, 2.0, 0.0], top_k=top_k) == (expected or [0, 1, 2, 3, 4])


def test_ranking_positive_and_negative_zero_are_equal():
    assert survivors([-0.0, 0.0, -0.0, 0.0], top_k=3) == [0, 1, 2]
    assert survivors([-1.0, 0.0, -0.0], top_k=1) == [1]


def test_top_k_of_the_vocabulary_or_more_is_no_limit():
    row = [0.3, -1.0, 2.0]
    for top_k in (3, 4, 10**9):
        torch.testing.assert_close(
            processed(row, top_k=top_k).probabilities, processed(row).probabilities, rtol=0, atol=0
        )


def test_min_p_drops_below_its_share_of_the_best_token():
    assert survivors(HALVES, min_p=0.5) == [0, 1]  # equal to the threshold stays
    assert survivors(HALVES, min_p=0.51) == [0]
    assert survivors(HALVES, min_p=0.25) == [0, 1, 2, 3]


def test_min_p_before_top_p_renormalises_the_mass():
    # After min-p the shares are 2/3 and 1/3: 0.7 admits the second token and nothing is left behind it.
    assert survivors(HALVES, min_p=0.4, top_p=0.6) == [0]
    assert survivors(HALVES, min_p=0.4, top_p=0.7) == [0, 1]
    assert survivors(HALVES, top_p=0.6) == [0, 1]


def test_top_p_then_top_k_differs_from_the_reverse_order():
    row = logits_of(0.4, 0.3, 0.2, 0.1)
    assert survivors(row, top_p=0.42, top_k=2) == [0, 1]
    reverse = survivors([row[0], row[1]], top_p=0.42)  # top-k first: the shares become 4/7 and 3/7
    assert reverse == [0]


def test_masked_columns_have_no_mass_and_do_not_count():
    row = [-np.inf, 0.0, -np.inf, 0.0]
    assert survivors(row, top_k=3) == [1, 3]
    assert survivors(row, top_p=0.9) == [1, 3]
    assert processed(row, top_p=0.9).probabilities.tolist() == [[0.0, 0.5, 0.0, 0.5]]


def test_one_finite_logit_has_probability_one_under_every_filter():
    row = [-np.inf, -np.inf, -3e38, -np.inf]
    for filters in ({}, {"top_p": 0.1}, {"top_k": 1}, {"min_p": 0.9}, {"temperature": 1e-4}, {"temperature": 3e38}):
        got = processed(row, **filters)
        assert got.probabilities.tolist() == [[0.0, 0.0, 1.0, 0.0]]
        assert got.logprobs(torch.tensor([2])).tolist() == [0.0]


def test_extreme_logits_and_temperatures_give_no_nan():
    row = [3.4e38, -3.4e38, 0.0, 1.0, -np.inf]
    for temperature in (1e-5, 1e-4, 1.0, 3.4e38):
        for filters in ({}, {"top_p": 0.5, "top_k": 3}, {"min_p": 0.1}):
            got = processed(row, temperature=temperature, **filters)
            assert not got.probabilities.isnan().any()
            assert abs(float(got.probabilities.sum()) - 1) < 1e-5


def test_logprobs_of_a_filtered_token_are_minus_infinity():
    got = processed(HALVES, top_k=2)
    assert got.logprobs(torch.tensor([2])).tolist() == [-np.inf]
    assert float(got.logprobs(torch.tensor([1]))) == pytest.approx(np.log(1 / 3), abs=1e-6)


@pytest.mark.parametrize("levels", [None, 12])
@pytest.mark.parametrize(
    "filters",
    [
        {"top_p": 0.3},
        {"top_p": 0.97},  # more survivors than are sorted at first
        {"top_k": 50},
        {"top_k": 1023},
        {"top_k": 1024},
        {"top_k": 3000},
        {"top_p": 0.9, "top_k": 200, "min_p": 0.01, "temperature": 0.6},
    ],
    ids=str,
)
def test_filters_of_wide_rows_agree_with_the_plain_version(levels, filters):
    logits = torch.randn(6000, generator=torch.Generator().manual_seed(5)) * 1.5
    if levels:
        logits = (logits * levels / 8).round() / levels * 8  # few distinct values: many ties at every cut
    row = logits.tolist()
    values = {"temperature": 1.0, "min_p": 0.0, "top_p": 1.0, "top_k": -1, **filters}
    kept = set((~processed(row, **filters).dropped[0]).nonzero().flatten().tolist())
    exact = {name: value if name == "top_k" else float(np.float32(value)) for name, value in values.items()}
    few, many = (set(oracle.kept(row, **exact, slack=slack)) for slack in (-1e-6, 1e-6))
    assert few <= kept <= many
    assert kept == set(oracle.ranking(row)[: len(kept)])


@pytest.mark.parametrize("filters", [{"top_p": 0.3}, {"top_p": 0.9}, {"top_p": 0.999}, {"top_k": 100}], ids=str)
def test_filters_sort_more_tokens_where_the_first_do_not_do(monkeypatch, filters):
    row = torch.randn(3000, generator=torch.Generator().manual_seed(8)).tolist()
    whole = processed(row, **filters)
    for candidates in ((4, 64, 700), (1,), ()):
        monkeypatch.setattr("deepinfer_samplers.filters._CANDIDATES", candidates)
        got = processed(row, **filters)
        assert torch.equal(got.dropped, whole.dropped)
        assert torch.equal(got.probabilities, whole.probabilities)


rows = st.lists(
    st.one_of(
        st.floats(-20, 20, width=32),
        st.integers(-4, 4).map(float),  # many ties
        st.sampled_from([-np.inf, 0.0, -0.0, -3e38]),
    ),
    min_size=1,
    max_size=48,
).filter(lambda row: max(row) > -np.inf)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    row=rows,
    temperature=st.sampled_from([1e-4, 0.1, 0.5, 1.0, 1.7, 100.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.2, 0.9]),
    top_p=st.sampled_from([1.0, 1.0, 1e-6, 0.1, 0.5, 0.9, 0.999]),
    top_k=st.sampled_from([-1, -1, 1, 2, 5, 40, 10**9]),
)
def test_filters_any_row_and_parameters_agree_with_the_plain_version(row, temperature, min_p, top_p, top_k):
    exact = np.array([temperature, min_p, top_p], np.float32).astype(float).tolist()
    got = processed(row, temperature, min_p, top_p, top_k)
    # What survives is always a beginning of the ranking; only its length may differ, by tokens on a threshold.
    order = oracle.ranking(row)
    with np.errstate(over="ignore"):
        scaled = (np.float32(row) - np.float32(row[order[0]])) / np.float32(temperature)
    visible = [token for token in order if scaled[token] > -np.inf]
    kept = [token for token in visible if got.dropped is None or not got.dropped[0, token]]
    assert kept == order[: len(kept)]
    few = [t for t in oracle.kept(row, *exact, top_k, slack=-1e-5) if t in visible]
    many = [t for t in oracle.kept(row, *exact, top_k, slack=1e-5) if t in visible]
    assert len(few) <= len(kept) <= len(many)
    expected = np.array(oracle.probabilities(row, exact[0], kept))
    np.testing.assert_allclose(got.probabilities[0].numpy(), expected, rtol=0, atol=1e-7 + 1e-4 * expected.max())
    assert abs(float(got.probabilities.sum()) - 1) < 1e-5
