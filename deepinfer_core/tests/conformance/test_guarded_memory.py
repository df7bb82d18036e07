"""Guards around the memory that an op takes find what it writes beside it, and change no result."""

import pytest

torch = pytest.importorskip("torch")

from deepinfer_core.conformance.failures import ConformanceFailure  # noqa: E402
from deepinfer_core.conformance.guarded_memory import GuardedMemory  # noqa: E402


def beside(made, place):
    """The value at ``place`` of a tensor's memory, which may lie outside the tensor."""
    return made.as_strided((1,), (1,), made.storage_offset() + place)


def test_results_are_those_without_guards():
    x = torch.randn(5, 7)
    plain = [torch.zeros_like(x), x.clone(), x.bfloat16(), x.new_full((3,), 2.0), torch.full((2, 2), 7)]
    with GuardedMemory() as memory:
        made = [torch.zeros_like(x), x.clone(), x.bfloat16(), x.new_full((3,), 2.0), torch.full((2, 2), 7)]
        assert all(torch.equal(*pair) for pair in zip(made, plain, strict=True))
        assert torch.empty(4, 0).shape == (4, 0)
        memory.verify()
    assert memory.guarded >= 6


def test_what_is_not_written_is_huge():
    with GuardedMemory():
        assert (torch.empty(3) > 3e38).all()
        assert (torch.empty(3, dtype=torch.bfloat16) > 3e38).all()
        assert (torch.empty(3, dtype=torch.int32) > 1 << 30).all()


@pytest.mark.parametrize(("place", "text"), [(12, "0 bytes behind"), (13, "4 bytes behind"), (-1, "4 bytes before")])
def test_a_write_beside_a_tensor_is_found(place, text):
    with GuardedMemory() as memory:
        beside(torch.empty(3, 4), place).fill_(-1.0)
        with pytest.raises(ConformanceFailure, match=text):
            memory.verify()
        torch.empty(3, 4).zero_()
        memory.verify()
