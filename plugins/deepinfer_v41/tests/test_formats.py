"""Decoding stored formats, and the quantisers of the test checkpoints against plain loops (spec/model.md 2.0, 9)."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_checkpoint import quantize_block_fp8, quantize_mxfp4

from deepinfer_core.errors import CheckpointError
from deepinfer_v41.weights.formats import dequantize_block_fp8, dequantize_mxfp4, e8m0_to_f32, f32_to_e8m0

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e8m0(*exponent_bytes: int) -> torch.Tensor:
    return torch.tensor([exponent_bytes], dtype=torch.uint8).view(torch.float8_e8m0fnu)


def code_value(code: int) -> float:
    return -E2M1[code & 7] if code & 8 else E2M1[code]


def e4m3_value(byte: int) -> float:
    sign, exponent, mantissa = -1.0 if byte & 0x80 else 1.0, (byte >> 3) & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def test_packed_fp4_is_read_low_nibble_first() -> None:
    packed = torch.tensor([[0x2B]], dtype=torch.uint8).view(torch.int8)
    assert dequantize_mxfp4(packed, e8m0(127)).tolist() == [[-1.5, 1.0]]
    assert dequantize_mxfp4(packed, e8m0(128)).tolist() == [[-3.0, 2.0]]
    other = torch.tensor([[0x21]], dtype=torch.uint8).view(torch.int8)
    assert dequantize_mxfp4(other, e8m0(127)).tolist() == [[0.5, 1.0]]


def test_every_fp4_byte_equals_the_plain_loop() -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(2, 128).view(torch.int8)
    scale = torch.randint(120, 134, (2, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    values = dequantize_mxfp4(packed, scale.view(torch.float8_e8m0fnu))
    assert values.shape == (2, 256)
    for row in range(2):
        for column in range(256):
            byte = row * 128 + column // 2
            code = byte >> 4 if column % 2 else byte & 15
            expected = code_value(code) * 2.0 ** (int(scale[row, column // 32]) - 127)
            assert values[row, column].item() == expected


@pytest.mark.parametrize("shape", [(130, 70), (33, 31), (1, 1), (64, 64)])
@pytest.mark.parametrize("block", [(128, 128), (32, 32), (1, 32)])
def test_block_scales_at_the_edges_equal_the_plain_loop(shape: tuple[int, int], block: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(5)
    codes = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0x7E  # NaN codes do not occur in a checkpoint
    grid = (math.ceil(shape[0] / block[0]), math.ceil(shape[1] / block[1]))
    exponents = torch.randint(110, 140, grid, generator=generator, dtype=torch.uint8)
    values = dequantize_block_fp8(codes.view(torch.float8_e4m3fn), exponents.view(torch.float8_e8m0fnu), block)
    table = [e4m3_value(byte) for byte in range(256)]
    exponent = exponents.tolist()
    expected = [
        [table[byte] * 2.0 ** (exponent[i // block[0]][j // block[1]] - 127) for j, byte in enumerate(row)]
        for i, row in enumerate(codes.tolist())
    ]
    torch.testing.assert_close(values, torch.tensor(expected), rtol=0, atol=0)


def test_transposed_scale_grid_is_refused() -> None:
    weight = torch.zeros(130, 70).to(torch.float8_e4m3fn)
    with pytest.raises(CheckpointError) as caught:
        dequantize_block_fp8(weight, torch.ones(3, 5))
    assert str(caught.value) == (
        "E_CHECKPOINT: FP8 weight of [130, 70] values needs a scale of [5, 3], got [3, 5]\n"
        "  reason: it is the transposed grid\n"
        "  remedy: store one scale per block, rows of blocks first"
    )
    with pytest.raises(CheckpointError, match=r"MXFP4 weight of \[4, 64\] values needs a scale of \[4, 2\]"):
        dequantize_mxfp4(torch.zeros(4, 32, dtype=torch.int8), torch.ones(2, 4))


def test_e8m0_round_trip_over_all_bytes() -> None:
    exponents = torch.arange(255, dtype=torch.uint8)
    values = e8m0_to_f32(exponents.view(torch.float8_e8m0fnu))
    assert values.tolist() == [2.0 ** (byte - 127) for byte in range(255)]
    assert torch.equal(f32_to_e8m0(values).view(torch.uint8), exponents)


def test_e8m0_byte_255_is_refused() -> None:
    with pytest.raises(CheckpointError, match="byte 255"):
        e8m0_to_f32(e8m0(255))


@pytest.mark.parametrize("value", [0.75, 0.0, -2.0, math.inf, math.nan, 2.0**-130, 1.0000001])
def test_scale_that_is_no_power_of_two_is_refused_where_one_is_needed(value: float) -> None:
    with pytest.raises(CheckpointError, match="is no power of two"):
        f32_to_e8m0(torch.tensor([[1.0, value]]))
    with pytest.raises(CheckpointError, match="is no power of two"):
        dequantize_mxfp4(torch.zeros(1, 32, dtype=torch.int8), torch.tensor([[1.0, value]]))


def test_fp8_round_trip_stays_at_the_error_of_the_format() -> None:
    values = torch.randn(96, 160, generator=torch.Generator().manual_seed(2)) * torch.logspace(-3, 3, 160)
    data, scale = quantize_block_fp8(values)
    back = dequantize_block_fp8(data, scale)
    # Half a step of 3 mantissa bits, or half the smallest subnormal in units of the block's scale.
    floor = 2.0**-10 * e8m0_to_f32(scale).repeat_interleave(32, 0).repeat_interleave(32, 1)
    assert bool(((back - values).abs() <= torch.maximum(values.abs() / 16, floor)).all())


def test_fp4_round_trip_stays_at_the_error_of_the_format() -> None:
    values = torch.randn(64, 128, generator=torch.Generator().manual_seed(2))
    data, scale = quantize_mxfp4(values)
    back = dequantize_mxfp4(data, scale)
    # Half a step of 1 mantissa bit (a quarter of the value), or of the smallest step, 0.5 in units of the scale.
    floor = 0.25 * e8m0_to_f32(scale).repeat_interleave(32, 1)
    assert bool(((back - values).abs() <= torch.maximum(values.abs() / 4, floor)).all())
    again, scale_again = quantize_mxfp4(back)
    assert torch.equal(dequantize_mxfp4(again, scale_again), back)


def test_quantisers_give_the_golden_bytes() -> None:
    values = ((torch.arange(32) - 15.5) * 0.37).bfloat16().float()[None]
    data, scale = quantize_mxfp4(values)
    assert data.view(torch.uint8)[0].numpy().tobytes().hex() == "ffeeeedecdbcab89103243546566" + "6677"
    assert scale.view(torch.uint8).tolist() == [[127]]
    data, scale = quantize_block_fp8(values, (1, 32))
    golden = "fcfbfaf9f8f8f6f5f3f2f0edeae7e1d45461676a6d707273757678" + "78797a7b7c"
    assert data.view(torch.uint8)[0].numpy().tobytes().hex() == golden
    assert scale.view(torch.uint8).tolist() == [[121]]
