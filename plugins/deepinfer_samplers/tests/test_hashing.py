"""The hash: the golden values of spec/sampling.md 2.4, and the plain version on everything else."""

import numpy as np
import pytest
import samplers_oracle as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_samplers.hashing import accept_keys, draw_keys, uniform

GOLDEN_KEYS = [
    (0, 0, 0, 0xE220A8397B1DCDAF),
    (0, 1, 0, 0xDADED652ADB02DA7),
    (1, 0, 0, 0x910A2DEC89025CC1),
    (42, 1000, 0, 0xBEB1F2D15A38E200),
    (42, 1000, 1, 0xB5CA489AA3178E55),
    (2**64 - 1, 131071, 0, 0x5642C7793445C86C),
    (42, 1000, 3, 0xC1C50ED1BAF80D56),
]
GOLDEN_UNIFORMS = [
    (0, 0, 0.8833108082136426),
    (42, 1000, 0.7449027787317593),
    (2**64 - 1, 131071, 0.3369564696224848),
]


@pytest.mark.parametrize(("seed", "pos", "case", "expected"), GOLDEN_KEYS)
def test_draw_keys_golden_inputs_give_the_golden_keys(seed, pos, case, expected):
    got = draw_keys(np.array([seed], np.uint64), np.array([pos], np.int32), case)
    assert got.tolist() == [expected]


@pytest.mark.parametrize(("seed", "pos", "expected"), GOLDEN_UNIFORMS)
def test_uniform_golden_keys_give_the_golden_numbers(seed, pos, expected):
    assert uniform(draw_keys(np.array([seed], np.uint64), [pos])).tolist() == [expected]


@pytest.mark.parametrize(("seed", "pos", "expected"), [(0, 0, 0.026433771592597743), (42, 1000, 0.5822194793888218)])
def test_accept_keys_golden_inputs_give_the_golden_numbers(seed, pos, expected):
    assert uniform(accept_keys([seed], [pos])).tolist() == [expected]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1), st.sampled_from([0, 1, 3, 4, 9]))
def test_keys_any_input_equal_the_plain_version(seed, pos, case):
    seeds, positions = np.array([seed], np.uint64), np.array([pos], np.int32)
    assert draw_keys(seeds, positions, case).tolist() == [oracle.key(seed, pos, case)]
    assert accept_keys(seeds, positions).tolist() == [oracle.accept(seed, pos)]


def test_draw_keys_signed_seeds_count_as_the_same_bits():
    signed = np.array([-1, -(2**63)], np.int64)
    got = draw_keys(signed, np.array([7, 7], np.int32))
    assert got.tolist() == [oracle.key(2**64 - 1, 7, 0), oracle.key(2**63, 7, 0)]


def test_draw_keys_floating_point_and_overflow_traps_stay_silent():
    with np.errstate(all="raise"):
        draw_keys(np.array([2**64 - 1], np.uint64), np.array([2**31 - 1], np.int32), 3)
        accept_keys([2**63], [5])


def test_draw_keys_neighbouring_positions_and_cases_never_repeat():
    positions = np.arange(4096)
    keys = np.concatenate([draw_keys(np.full(4096, 9, np.uint64), positions, case) for case in (0, 1, 3, 4)])
    assert len(np.unique(keys)) == len(keys)
