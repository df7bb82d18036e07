"""What the tests of models, samplers and grammars judge with: statistics, closeness, plain references."""

from __future__ import annotations

import json
import random
import struct
from types import SimpleNamespace

import numpy as np
import pytest

from deepinfer_core.conformance.failures import ConformanceFailure
from deepinfer_core.conformance.model.broken import Tensors, without
from deepinfer_core.conformance.model.closeness import require_same_rows
from deepinfer_core.conformance.reference.sampling import canonical_draw, distribution, key, survivors, words
from deepinfer_core.conformance.statistics import chi_square_limit, require_distribution


def backend(*, invariant: bool) -> SimpleNamespace:
    features = frozenset({"batch_invariant"} if invariant else ())
    return SimpleNamespace(capabilities=SimpleNamespace(features=features, determinism={}))


@pytest.mark.parametrize("freedom", [1, 3, 15, 63])
def test_chi_square_limit_is_passed_once_in_a_million(freedom: int) -> None:
    stats = pytest.importorskip("scipy.stats", reason="the library that has the exact limit")
    assert 5e-8 < float(stats.chi2.sf(chi_square_limit(freedom), freedom)) < 1.5e-6


def test_tokens_of_the_distribution_pass_and_of_another_one_fail() -> None:
    draw = random.Random(1)
    tokens = draw.choices(range(4), [0.4, 0.3, 0.2, 0.1], k=4096)
    require_distribution(tokens, [0.4, 0.3, 0.2, 0.1], "same")
    with pytest.raises(ConformanceFailure, match="other: the tokens do not follow the distribution"):
        require_distribution(tokens, [0.35, 0.35, 0.2, 0.1], "other")


def test_token_without_probability_fails_at_once() -> None:
    with pytest.raises(ConformanceFailure, match="never: token 1 has probability 0 and came 1 times"):
        require_distribution([0, 0, 1], [1.0, 0.0], "never")


def test_rows_differ_by_a_bit_on_an_invariant_backend_only() -> None:
    want = np.random.default_rng(1).normal(0, 1, (20, 8)).astype(np.float32)
    got = want.copy()
    got[3, 2] = np.nextafter(got[3, 2], np.float32(9))
    require_same_rows(got, want, backend(invariant=False), "near")
    with pytest.raises(ConformanceFailure) as raised:
        require_same_rows(got, want, backend(invariant=True), "not the same")
    assert raised.value.facts["worst"] == "row 3 of 20, 1 rows differ"


@pytest.mark.parametrize("rows", [1, 20])
def test_rows_far_away_or_nan_are_never_the_same(rows: int) -> None:
    want = np.zeros((20, 8), np.float32)
    for value in (20.0, np.nan):
        got = want.copy()
        got[:rows, 0] = value
        with pytest.raises(ConformanceFailure, match="far"):
            require_same_rows(got, want, backend(invariant=False), "far")


def test_reference_draw_gives_the_golden_tokens() -> None:
    """The table of the specification: p = (.1, .2, .3, .4), six keys."""
    keys = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (42, 1000, 0), (42, 1000, 1), (2**64 - 1, 131071, 0)]
    p = [float(np.float32(value)) for value in (0.1, 0.2, 0.3, 0.4)]
    assert [canonical_draw(p, key(*each)) for each in keys] == [3, 3, 2, 3, 3, 2]


def test_reference_filters_keep_the_token_that_crosses_top_p_and_ties_by_id() -> None:
    row = [float(np.log(p)) for p in (0.1, 0.4, 0.3, 0.2)]
    assert survivors(row) == [1, 2, 3, 0]
    assert survivors(row, top_p=0.5) == [1, 2]
    assert survivors(row, top_p=0.5, top_k=1) == [1]
    assert survivors(row, min_p=0.6) == [1, 2]
    assert survivors([0.0, 1.0, 1.0, -np.inf], top_k=2) == [1, 2]
    assert distribution([0.0, 2.0, 2.0], temperature=0.0) == [0.0, 1.0, 0.0]


def test_reference_mask_has_the_least_bit_first() -> None:
    assert words([0, 33], 40) == [1, 2]
    assert words([31], 32) == [-(2**31)]


def test_tensors_taken_away_leave_a_well_formed_file(tmp_path) -> None:
    header = {"a": ([2], 0, 8), "b": ([1], 8, 12), "c": ([2, 2], 12, 28)}
    entries = {n: {"dtype": "F32", "shape": s, "data_offsets": [i, j]} for n, (s, i, j) in header.items()}
    text = json.dumps(entries).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(range(28)))
    tensors = Tensors.read(path)
    without(["b"])(tensors)
    tensors.flatten("c")
    tensors.write(path)
    again = Tensors.read(path)
    assert {name: (e["shape"], e["data_offsets"]) for name, e in again.entries.items()} == {
        "a": ([2], [0, 8]),
        "c": ([4], [8, 24]),
    }
    assert again.data == bytes([*range(8), *range(12, 28)])
