"""The logits filter ``top_n_sigma`` against its definition in exact arithmetic, its hook, and the tokens drawn."""

import math
import statistics
import subprocess
import sys
import tomllib
from fractions import Fraction
from importlib.resources import files

import numpy as np
import pytest
import torch
from samplers_step import sampler_inputs

from deepinfer_core.errors import InvalidParameter, PluginMissing
from deepinfer_core.interfaces import LogitsFilter
from deepinfer_core.requests.request_parts import RequestParts
from deepinfer_samplers import filter_plugin
from deepinfer_samplers.canonical import CanonicalSampler
from deepinfer_samplers.top_n_sigma import TopNSigma

NOT = -math.inf


def make(**params):
    return filter_plugin.deepinfer_logits_filter_create("top_n_sigma", params)


def filtered(rows, **params):
    logits = np.array(rows, np.float32)
    return make(**params).apply(logits, list(range(len(logits)))).tolist()


def plain(row, n):
    """The definition over fractions. A logit is kept where ``max - logit <= n * sigma``, that is, as both sides are not
    negative, where their squares compare so: nothing is rounded."""
    finite = [Fraction(value) for value in row if value != NOT]
    variance = statistics.pvariance(finite) if finite else Fraction(0)
    return [
        value if value != NOT and (max(finite) - Fraction(value)) ** 2 <= Fraction(n) ** 2 * variance else NOT
        for value in row
    ]


@pytest.mark.parametrize("n", [0.25, 1.0, 2.5, 3])
def test_rows_agree_with_the_definition(n):
    rng = np.random.default_rng(11)
    logits = rng.normal(1.0, 4.0, (40, 97)).astype(np.float32)
    logits[rng.random(logits.shape) < 0.3] = NOT
    logits[0] = NOT
    expected = [plain(row, n) for row in logits.tolist()]
    assert filtered(logits, n=n) == expected
    kept = np.isfinite(expected).sum(axis=1)
    assert (kept[1:] >= 1).all()
    assert kept.sum() < np.isfinite(logits).sum(), "nothing was cut"


def test_default_is_one_deviation():
    rows = np.random.default_rng(3).normal(0.0, 2.0, (4, 50)).astype(np.float32)
    assert filtered(rows) == filtered(rows, n=1.0) != filtered(rows, n=1.5)


def test_deviation_is_that_of_the_population():
    """Of 0 and 2 it is 1 (with n - 1 in place of n: 1.41): at 2 deviations the lower one is just kept."""
    assert filtered([[0.0, 2.0]], n=2.0) == [[0.0, 2.0]]
    assert filtered([[0.0, 2.0]], n=1.999) == [[NOT, 2.0]]


def test_equal_logits_share_their_fate():
    """Mean 4, deviation 4: the limit at one deviation is 4, at two it is 0."""
    assert filtered([[0.0, 8.0, 8.0, 0.0]], n=1.0) == [[NOT, 8.0, 8.0, NOT]]
    assert filtered([[0.0, 8.0, 8.0, 0.0]], n=2.0) == [[0.0, 8.0, 8.0, 0.0]]


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 3.4e38, -3.4e38, 1e-45])
def test_row_of_equal_logits_keeps_all(value):
    rows = np.full((1, 129), value, np.float32)
    assert filtered(rows, n=1.0) == rows.tolist()


def test_one_finite_logit_stays_and_none_stays_none():
    assert filtered([[NOT, -3.0, NOT], [NOT, NOT, NOT]]) == [[NOT, -3.0, NOT], [NOT, NOT, NOT]]


def test_forbidden_logits_do_not_count_and_stay_forbidden():
    row = [1.0, 2.0, 4.0, 4.5]
    assert filtered([[NOT, *row, NOT, NOT]])[0] == [NOT, *filtered([row])[0], NOT, NOT]


def test_largest_logit_stays_however_small_n_is():
    rows = np.random.default_rng(5).normal(0.0, 3.0, (20, 33)).astype(np.float32)
    for before, after in zip(rows.tolist(), filtered(rows, n=1e-300), strict=True):
        assert after == [value if value == max(before) else NOT for value in before]


def test_n_that_is_as_large_as_can_be_keeps_all():
    rows = np.array([[-3.4e38, 0.0, 3.4e38]], np.float32)
    assert filtered(rows, n=sys.float_info.max) == rows.tolist()


def test_temperature_does_not_change_what_is_kept():
    rows = np.random.default_rng(6).normal(0.0, 3.0, (8, 64)).astype(np.float32)
    kept = np.isfinite(filtered(rows))
    for temperature in (0.25, 2.0, 8.0):  # powers of two: the division rounds nothing
        assert (np.isfinite(filtered(rows / np.float32(temperature))) == kept).all()


def test_row_has_the_same_bits_alone_and_among_others():
    rows = np.random.default_rng(7).normal(0.0, 3.0, (6, 1000)).astype(np.float32)
    assert filtered(rows) == [filtered(rows[i : i + 1])[0] for i in range(6)]
    assert filtered(np.asfortranarray(rows)) == filtered(rows)


@pytest.mark.parametrize("n", [0, -1.0, math.nan, math.inf, True, None, "1", [1.0], 10**400])
def test_n_that_is_no_finite_number_above_0_is_refused(n):
    with pytest.raises(InvalidParameter) as caught:
        make(n=n)
    assert str(caught.value) == (
        f"E_PARAM: n of logits filter 'top_n_sigma' must be a finite number above 0, got {n!r}\n"
        "  reason: it is a distance from the largest logit, in standard deviations of the row\n"
        "  remedy: give 1.0, or leave it out; more keeps more tokens"
    )


def test_unknown_parameters_are_refused_by_name():
    with pytest.raises(InvalidParameter) as caught:
        make(n=1.0, sigma=2, N=1)
    assert str(caught.value) == (
        "E_PARAM: logits filter 'top_n_sigma' does not know 'N', 'sigma'\n"
        "  reason: its parameters are: n\n"
        "  remedy: remove 'N', 'sigma'"
    )


def test_other_name_is_refused():
    with pytest.raises(PluginMissing, match="no logits filter named 'top_sigma' in deepinfer-samplers"):
        filter_plugin.deepinfer_logits_filter_create("top_sigma", {})


def test_hook_returns_a_filter():
    assert isinstance(make(), LogitsFilter)
    assert make(n=2).n == 2.0


def test_hook_matches_the_hookspecs_and_the_manifest():
    pluggy = pytest.importorskip("pluggy")
    from deepinfer_core import hookspecs

    manager = pluggy.PluginManager("deepinfer")
    manager.add_hookspecs(hookspecs)
    manager.register(filter_plugin)
    manager.check_pending()
    manifest = tomllib.loads(files("deepinfer_samplers").joinpath("deepinfer.toml").read_text("utf-8"))
    assert [table["name"] for table in manifest["logits_filter"]] == [filter_plugin.NAME]


def test_hook_module_imports_neither_torch_nor_numpy():
    code = "import sys, deepinfer_samplers.filter_plugin; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_tokens_drawn_are_those_that_the_filter_keeps():
    rows = 400
    row = torch.tensor([3.0, 2.5, 1.0, 0.0, -1.0, -2.0])
    parts = {i: RequestParts((("top_n_sigma", TopNSigma(1.0)),)) for i in range(0, rows, 2)}
    inputs = sampler_inputs(rows, temperature=4.0, seed=list(range(rows)))
    drawn = CanonicalSampler(6).sample_with(row.repeat(rows, 1), inputs, parts).sampled_ids
    assert set(drawn[::2].tolist()) == {i for i, value in enumerate(plain(row.tolist(), 1.0)) if value != NOT} == {0, 1}
    assert set(drawn[1::2].tolist()) == set(range(6))
