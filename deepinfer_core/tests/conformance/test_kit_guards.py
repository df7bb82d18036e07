"""Guarded tensors and repeated runs find what they are for."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from deepinfer_core.conformance.failures import ConformanceFailure, require_no_error, require_raises  # noqa: E402
from deepinfer_core.conformance.guards import Guards  # noqa: E402
from deepinfer_core.conformance.repeats import run_twice  # noqa: E402


def test_guards_unused_and_filled_tensors_pass() -> None:
    guards = Guards("cpu")
    out = guards((3, 5), torch.bfloat16)
    empty = guards((0, 4), torch.float32)
    held = guards.of(torch.arange(6).reshape(2, 3), frozen=True)
    assert bool(out.isnan().all())
    out.zero_()
    assert empty.shape == (0, 4)
    assert held.tolist() == [[0, 1, 2], [3, 4, 5]]
    guards.verify()


@pytest.mark.parametrize(("place", "text"), [(5, "0 bytes behind"), (-1, "4 bytes before it")])
def test_guards_write_beside_a_tensor_is_found(place: int, text: str) -> None:
    guards = Guards("cpu")
    out = guards((5,), torch.float32, name="out")
    whole = torch.empty(0, dtype=torch.float32).set_(out.untyped_storage())
    whole[out.storage_offset() + place] = 0
    with pytest.raises(ConformanceFailure) as caught:
        guards.verify()
    assert str(caught.value) == f"memory beside a tensor was written\n  tensor: out\n  where: {text}\n  bytes: 4"


def test_guards_change_of_a_frozen_input_is_found() -> None:
    guards = Guards("cpu")
    guards.of(torch.ones(4), name="x", frozen=True)[2] = 2
    with pytest.raises(ConformanceFailure, match="an input was changed"):
        guards.verify()


def test_run_twice_equal_results_are_returned_and_written() -> None:
    x, out = torch.arange(4.0), torch.empty(4)

    def double(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, 2, out=out)

    assert run_twice(double, x, out=out) is out
    assert out.tolist() == [0, 2, 4, 6]


def test_run_twice_output_left_unwritten_is_found() -> None:
    def half_written(*, out: torch.Tensor) -> torch.Tensor:
        out[:2] = 1
        return out

    with pytest.raises(ConformanceFailure, match="a second run on the same inputs differs"):
        run_twice(half_written, out=torch.zeros(4), op="x.y")


def test_run_twice_compares_what_the_contract_defines() -> None:
    """Scores behind the visible entries are undefined (``spec/kernels.md`` 2.4): an op may leave memory as it is."""

    def first_two(*, out: torch.Tensor) -> torch.Tensor:
        out[:2] = 1.0
        return out

    assert run_twice(lambda: first_two(out=torch.empty(4)), defined=lambda got: got[:2])[:2].tolist() == [1.0, 1.0]
    state = [0]

    def drifting() -> torch.Tensor:
        state[0] += 1
        return torch.tensor([1.0, float(state[0])])

    assert run_twice(drifting, defined=lambda got: got[:1])[0] == 1.0
    with pytest.raises(ConformanceFailure, match="a second run on the same inputs differs"):
        run_twice(drifting, defined=lambda got: got[1:], op="x.y")


def test_run_twice_state_that_ends_differently_is_found() -> None:
    count = []

    def stateful(state: torch.Tensor) -> int:
        count.append(None)
        state[0] = len(count)
        return 0

    with pytest.raises(ConformanceFailure, match="a second run"):
        run_twice(stateful, torch.zeros(2))


def test_require_raises_names_what_came_instead() -> None:
    with pytest.raises(ConformanceFailure) as caught, require_raises(ValueError, "taken", op="x.y"):
        raise KeyError("k")
    assert str(caught.value) == "taken\n  op: x.y\n  got: KeyError: 'k'\n  expected: a ValueError"
    with pytest.raises(ConformanceFailure, match="got: no exception"), require_raises(ValueError, "taken"):
        pass
    with require_raises(ValueError, "taken") as raised:
        raise ValueError("bad")
    assert str(raised[0]) == "bad"


def test_require_no_error_passes_failures_on() -> None:
    with pytest.raises(ConformanceFailure, match="inner"), require_no_error("outer"):
        raise ConformanceFailure("inner")
    with pytest.raises(ConformanceFailure, match="outer"), require_no_error("outer"):
        raise OSError("x")
