"""The tolerance classes: what each passes, what it does not, and what a failure says."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from deepinfer_core.conformance import tolerances  # noqa: E402
from deepinfer_core.conformance.failures import ConformanceFailure  # noqa: E402

NAN, INF = math.nan, math.inf


def failure(*arguments: Any, **context: Any) -> str:
    with pytest.raises(ConformanceFailure) as caught:
        tolerances.check(*arguments, **context)
    return str(caught.value)


def test_parse_reads_fractions_and_refuses_what_is_no_class() -> None:
    assert tolerances.parse("A(8e-4, 3.01/128)").limits == (8e-4, 3.01 / 128)
    for spec in ("", "D", "A(1)", "B(1)", "U", "C(x)"):
        with pytest.raises(ValueError, match=r".+"):
            tolerances.parse(spec)


def test_class_of_output_comes_from_the_table_of_outputs() -> None:
    assert tolerances.class_of("norm.rms") == "C(1e-4)"
    assert tolerances.class_of("attn.sparse_decode", "lse") == "A(1e-6, 8.01/65536)"
    assert tolerances.class_of("norm.rms", "bytes") == "B"
    with pytest.raises(KeyError):
        tolerances.class_of("norm.rms", "lse")


def test_bytes_class_tells_signs_of_zero_apart_and_rounds_the_reference() -> None:
    reference = torch.tensor([1.0, 1 / 3, 0.0], dtype=torch.float64)
    assert tolerances.check(reference.bfloat16(), reference, "B").value == 0
    assert failure(torch.tensor([1.0, 1 / 3, -0.0]), reference, "B", op="x.y", case="zero") == (
        "the values are not equal\n  op: x.y\n  case: zero\n  tolerance: B\n  worst: [2]\n  got: -0.0\n"
        "  expected: 0.0\n  limit: 0.0\n  differing: 1 of 3"
    )
    assert "the values are not equal" in failure(torch.tensor([1, 2]), torch.tensor([1, 3]), "B")


@pytest.mark.parametrize(("value", "name"), [(NAN, "NaN"), (INF, "+inf"), (-INF, "-inf")])
def test_specials_at_other_places_fail_whatever_the_class(value: float, name: str) -> None:
    reference = torch.tensor([[1.0, value]], dtype=torch.float64)
    assert tolerances.check(reference.float(), reference, "A(1e-3, 0)").value == 0
    text = failure(torch.tensor([[1.0, 1e30]]), reference, "C(0.5)")
    assert text.splitlines()[0] == f"{name} at other places than in the reference"
    assert "  worst: [0, 1]" in text.splitlines()
    assert f"{name} at other" in failure(torch.tensor([[value, 1.0]]), torch.ones(1, 2).double(), "A(1e30, 0)")


def test_reference_beyond_the_range_of_the_dtype_is_an_infinity() -> None:
    assert tolerances.check(torch.tensor([INF], dtype=torch.float16), torch.tensor([1e6]).double(), "U(1)").value == 0


def test_ulp_class_counts_neighbours_across_zero() -> None:
    tiny = torch.finfo(torch.float32).smallest_normal * torch.finfo(torch.float32).eps
    assert tolerances.check(torch.tensor([tiny]), torch.tensor([-tiny]).double(), "U(2)").value == 2
    assert "2 ulp from the reference" in failure(torch.tensor([tiny]), torch.tensor([-tiny]).double(), "U(1)")


def test_absolute_class_allows_what_it_says_and_names_the_worst() -> None:
    reference = torch.tensor([1.0, 100.0], dtype=torch.float64)
    assert tolerances.check(torch.tensor([1.0, 101.0]), reference, "A(0.0, 0.0101)").value < 1
    text = failure(torch.tensor([1.0, 102.0]), reference, "A(0.0, 0.01)")
    assert text.splitlines()[0] == "2 times the allowed distance from the reference"
    assert "  worst: [1]" in text.splitlines()


def test_cosine_class_by_rows_finds_the_one_wrong_row() -> None:
    reference = torch.randn(512, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wrong = reference.clone()
    wrong[300] = wrong[300].flip(0)
    assert tolerances.check(wrong.float(), reference, "C(1e-2)").value > 0
    assert "  worst: [300, " in failure(wrong.float(), reference, "C(1e-2)", rows=True)
    assert tolerances.check(torch.zeros(3, 4), torch.zeros(3, 4).double(), "C(1e-9)", rows=True).value == 0


def test_set_class_allows_other_indices_only_where_keys_are_equal() -> None:
    keys = torch.tensor([[3.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[0, 1, -1]])
    for got in ([[1, 0, -1]], [[0, 2, -1]], [[-1, 2, 0]]):
        tolerances.check(torch.tensor(got), expected, "S", keys=keys)
    assert "another set of indices" in failure(torch.tensor([[0, 3, -1]]), expected, "S", keys=keys)
    assert "another set of indices" in failure(torch.tensor([[0, 2, -1]]), expected, "S")
    assert "an index is there twice" in failure(torch.tensor([[0, 0, 1]]), expected, "S", keys=keys)
    tolerances.check(torch.tensor([[10, 12, -1]]), torch.tensor([[10, 11, -1]]), "S", keys=keys, offset=[10])


def test_quantised_class_allows_one_code_in_a_thousand_off_by_one() -> None:
    codes = torch.full((1000,), 0x40, dtype=torch.uint8)
    scales = torch.full((10,), 127, dtype=torch.uint8)
    near, far = codes.clone(), codes.clone()
    near[5] += 1
    far[5] += 2
    assert tolerances.check((near, scales), (codes, scales), "Q", fmt="e4m3").value == pytest.approx(1e-3)
    assert "one by 2" in failure((far, scales), (codes, scales), "Q", fmt="e4m3")
    near[6] += 1
    assert "0.200% of the codes differ" in failure((near, scales), (codes, scales), "Q", fmt="e4m3")
    assert "part: scales" in failure((codes, scales + 1), (codes, scales), "Q", fmt="e4m3")


def test_packed_codes_are_compared_nibble_by_nibble() -> None:
    codes, scales = torch.tensor([0x21], dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    swapped = torch.tensor([0x12], dtype=torch.uint8)
    assert tolerances.code_ordinals(torch.tensor([0xF8], dtype=torch.uint8), "e2m1").tolist() == [0, -7]
    assert "100.000% of the codes differ, one by 1" in failure((swapped, scales), (codes, scales), "Q", fmt="e2m1")


def test_other_shape_fails_before_anything_is_compared() -> None:
    assert failure(torch.zeros(2, 3), torch.zeros(3, 2).double(), "A(1, 1)").splitlines()[0] == (
        "the result has another shape"
    )
    assert tolerances.check(torch.zeros(0, 3), torch.zeros(0, 3).double(), "C(1e-9)").value == 0
