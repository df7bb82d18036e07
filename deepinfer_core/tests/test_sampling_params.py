"""SamplingParams: ranges, types, features that are absent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from deepinfer_core.errors import InvalidParameter, NotSupported
from deepinfer_core.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", True),
        ("temperature", "1"),
        ("temperature", None),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_p", -1),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", 0),
        ("top_k", -2),
        ("top_k", 2.0),
        ("top_k", True),
        ("top_k", 2**31),
        ("min_p", 1),
        ("min_p", 2),
        ("min_p", -0.1),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", None),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("ignore_eos", 1),
        ("include_stop", "yes"),
        ("stop", ""),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", 3),
        ("stop", b"x"),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [1.0]),
        ("stop_token_ids", "12"),
        ("stop_token_ids", 12),
        ("seed", 1.5),
        ("seed", True),
        ("repetition_penalty", 0),
        ("presence_penalty", 3),
        ("frequency_penalty", math.nan),
        ("n", 0),
        ("n", 129),
        ("n", 2.0),
    ],
)
def test_value_outside_its_range_is_refused_with_field_value_and_range(name: str, value: object) -> None:
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**{name: value})
    assert caught.value.code == "E_PARAM"
    assert caught.value.details["field"] == name
    assert name in caught.value.what
    assert "allowed: " in caught.value.what
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 1.5),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -2),
        ("logit_bias", {1: 2.0}),
        ("logprobs", 5),
        ("logprobs", 0),
        ("top_logprobs", 1),
        ("prompt_logprobs", True),
        ("forced_token_ids", [1]),
    ],
)
def test_absent_feature_is_refused_by_name_with_a_remedy(name: str, value: object) -> None:
    with pytest.raises(NotSupported) as caught:
        SamplingParams(**{name: value})
    assert caught.value.code == "E_UNSUPPORTED"
    assert caught.value.what.startswith(f"{name}=")
    assert caught.value.remedy


def test_off_values_of_absent_features_are_accepted() -> None:
    SamplingParams(repetition_penalty=1, presence_penalty=0, frequency_penalty=0.0, logprobs=None, top_logprobs=0)


def test_limits_are_accepted() -> None:
    params = SamplingParams(temperature=0, top_p=1e-9, top_k=10**9, min_p=0, max_tokens=np.int64(3), min_tokens=3)
    assert (params.top_k, params.max_tokens, params.min_tokens) == (10**9, 3, 3)
    assert type(params.max_tokens) is int
    assert params.is_greedy
    assert SamplingParams(temperature=1e-8).is_greedy
    assert not SamplingParams(temperature=1e-4).is_greedy


def test_stop_is_normalised() -> None:
    assert SamplingParams(stop="x").stop == ("x",)
    assert SamplingParams(stop=["b", "a", "b"]).stop == ("b", "a")
    assert SamplingParams(stop_token_ids=np.array([3, 3])).stop_token_ids == (3,)


def test_seed_is_taken_modulo_2_64() -> None:
    assert SamplingParams(seed=-1).seed == 2**64 - 1
    assert SamplingParams(seed=2**64 + 5).seed == 5
    assert SamplingParams(seed=-(2**200) + 3).seed == 3


def test_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(InvalidParameter, match="unknown sampling parameter 'temprature'") as caught:
        SamplingParams().updated({"temprature": 0})
    assert caught.value.remedy == "did you mean 'temperature'?"


def test_updated_checks_the_values() -> None:
    assert SamplingParams().updated({"max_tokens": 5}).max_tokens == 5
    with pytest.raises(InvalidParameter, match="top_p is 7"):
        SamplingParams().updated({"top_p": 7})


def test_vocabulary_check_names_the_id() -> None:
    SamplingParams(stop_token_ids=[299]).check_vocabulary(300)
    with pytest.raises(InvalidParameter, match=r"stop_token_ids is 300; allowed: token ids from 0 to 299"):
        SamplingParams(stop_token_ids=[300]).check_vocabulary(300)


def test_params_are_frozen() -> None:
    with pytest.raises(AttributeError):
        SamplingParams().top_k = 3  # type: ignore[misc]
