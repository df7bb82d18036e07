"""Element codes and scales against exact fractions."""

import math

import cpu_scalar
import numpy as np
import pytest
import torch

from deepinfer_cpu import rounding

EDGES = [
    (0.0, 0), (-0.0, 8), (0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6), (5.1, 7), (100.0, 7),
    (-5.0, 14),
]  # fmt: skip


def around(values: list[float]) -> torch.Tensor:
    """The values, the fp32 numbers beside them, midpoints and the numbers beside those, both signs."""
    points = np.array(values, dtype=np.float32)
    middles = ((points[1:].astype(np.float64) + points[:-1]) / 2).astype(np.float32)
    both = np.concatenate([points, middles])
    near = np.concatenate([both, np.nextafter(both, np.float32(1e9)), np.nextafter(both, np.float32(-1e9))])
    return torch.from_numpy(np.concatenate([near, -near]))


@pytest.mark.parametrize(("value", "code"), EDGES)
def test_encode_e2m1_of_an_edge_gives_its_code(value, code):
    byte = rounding.encode_e2m1(torch.tensor([value, 0.0]))
    assert byte.tolist() == [code]


def test_encode_e2m1_around_every_midpoint_equals_exact_rounding():
    x = around(list(cpu_scalar.E2M1))
    packed = rounding.encode_e2m1(x.view(-1, 2)).view(-1).tolist()
    codes = [cpu_scalar.encode_e2m1(v) for v in x.tolist()]
    assert packed == cpu_scalar.pack_nibbles(codes)


def test_encode_e4m3_around_every_midpoint_equals_exact_rounding():
    x = around(list(cpu_scalar.E4M3))
    assert rounding.encode_e4m3(x).tolist() == [cpu_scalar.encode_e4m3(v) for v in x.tolist()]


def test_encode_e4m3_beyond_the_range_saturates_and_keeps_nan():
    x = torch.tensor([449.0, 1e4, math.inf, -math.inf, math.nan])
    assert rounding.encode_e4m3(x).tolist() == [0x7E, 0x7E, 0x7E, 0xFE, 0x7F]


@pytest.mark.parametrize(
    ("round_", "encode", "decode", "top", "values"),
    [
        (rounding.round_e4m3, rounding.encode_e4m3, rounding.decode_e4m3, 448.0, cpu_scalar.E4M3),
        (rounding.round_e2m1, rounding.encode_e2m1, rounding.decode_e2m1, 6.0, cpu_scalar.E2M1),
    ],
)
def test_round_of_any_value_equals_decode_of_encode(round_, encode, decode, top, values):
    x = torch.cat([around(list(values)).clamp(-top, top), torch.rand(4096) * 2 * top - top])
    assert torch.equal(round_(x), decode(encode(x)))


def test_round_e4m3_of_nan_is_nan():
    assert math.isnan(rounding.round_e4m3(torch.tensor([math.nan])).item())


def test_decode_e4m3_of_all_bytes_gives_the_values():
    expected = torch.tensor([cpu_scalar.e4m3_value(c) for c in range(256)])
    torch.testing.assert_close(
        rounding.decode_e4m3(torch.arange(256, dtype=torch.uint8)), expected, rtol=0, atol=0, equal_nan=True
    )


def test_decode_e2m1_takes_the_low_nibble_first():
    assert rounding.decode_e2m1(torch.tensor([0x21, 0x9F], dtype=torch.uint8)).tolist() == [0.5, 1.0, -6.0, -0.5]


def test_decode_e8m0_of_bytes_0_to_254_gives_powers_of_two():
    got = rounding.decode_e8m0(torch.arange(255, dtype=torch.uint8)).double().tolist()
    assert got == [2.0 ** (b - 127) for b in range(255)]


def test_decode_e8m0_of_255_is_nan():
    assert math.isnan(rounding.decode_e8m0(torch.tensor([255], dtype=torch.uint8)).item())


def test_encode_e8m0_of_decode_round_trips_for_normal_scales():
    codes = torch.arange(1, 255, dtype=torch.uint8)
    assert torch.equal(rounding.encode_e8m0(rounding.decode_e8m0(codes)), codes)


def test_pow2_ceil_just_above_a_power_takes_the_next():
    x = torch.tensor([1.0, 1.0000001, 1.4143, 2.0, 0.75, 2.0**-126])
    assert rounding.pow2_ceil(x).tolist() == [1.0, 2.0, 2.0, 2.0, 1.0, 2.0**-126]


def test_encode_e2m1_of_nan_and_infinity_stays_a_code():
    x = torch.tensor([math.nan, math.inf, -math.inf, -math.nan])
    low, high = (int(b) for b in rounding.encode_e2m1(x))
    assert low >> 4 == 7
    assert high & 15 == 15
