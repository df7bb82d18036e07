"""Scale words and the fractal layout: round trips, what lies where, and what is refused."""

import pytest
import torch

from deepinfer_ascend.fractal import NZ, from_fractals, to_fractals
from deepinfer_ascend.scale_words import check_words, pack, unpack
from deepinfer_core.errors import ShapeContractError


def test_the_lower_group_is_in_the_low_byte_of_a_word():
    words = pack(torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=torch.uint8))
    assert words.tolist() == [[0x0201, 0x0403], [0x0605, 0x0807]]
    assert words.stride() == (1, 2)


@pytest.mark.parametrize("shape", [(1, 2), (7, 4), (3, 5, 8)])
def test_words_come_back_as_they_went(shape):
    scales = torch.randint(0, 256, shape, dtype=torch.uint8)
    assert torch.equal(unpack(pack(scales)), scales)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda w: w.contiguous(),  # row-major
        lambda w: w.int(),  # four groups a word, as on NVIDIA's devices
        lambda w: w[:, :1],  # scales of half the inputs
        lambda w: torch.zeros(2, 12, dtype=torch.int16).t()[:9],  # padded columns
    ],
)
def test_other_words_are_refused(wrong):
    words = pack(torch.zeros(9, 4, dtype=torch.uint8))
    check_words("call", "sf", words, 9, 128)
    with pytest.raises(ShapeContractError, match="call: argument 'sf' must be"):
        check_words("call", "sf", wrong(words), 9, 128)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8, torch.float8_e4m3fn, torch.float32])
@pytest.mark.parametrize("shape", [(16, 32), (1, 1), (33, 50), (2, 17, 96)])
def test_a_matrix_comes_back_from_fractals(shape, dtype):
    x = torch.randint(0, 100, shape).to(torch.uint8).float().to(dtype)
    found = from_fractals(to_fractals(x))
    assert torch.equal(found.view(torch.uint8), x.contiguous().view(torch.uint8))


def test_an_element_lies_where_the_layout_says():
    """Row 18, byte 35 of FP8: second fractal of the second column of fractals, third row, fourth byte."""
    x = torch.zeros(32, 64, dtype=torch.uint8)
    x[18, 35] = 9
    data = to_fractals(x).data
    assert data.shape == (2, 2, 16, 32)
    assert data[1, 1, 2, 3] == 9
    assert data.sum() == 9


def test_fractals_show_shape_and_dtype_and_have_no_contents():
    found = to_fractals(torch.zeros(8, 8, dtype=torch.bfloat16))
    assert (tuple(found.shape), found.dtype, NZ) == ((8, 8), torch.bfloat16, 29)
    for method in ("view", "__getitem__", "contiguous"):
        assert not hasattr(found, method)


def test_a_strided_matrix_has_no_fractals():
    with pytest.raises(ShapeContractError, match="npu_format_cast"):
        to_fractals(torch.zeros(8, 8).t()[:4])
