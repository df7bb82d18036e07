"""SamplingParams: ranges, types, features that are absent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from deepinfer_core.errors import InvalidParameter
from deepinfer_core.parameters.sampling_params import SamplingParams


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
        ("temperature", 1e39),
        ("top_p", 1e-300),
        ("min_p", 1 - 1e-9),
        ("repetition_penalty", 1e-46),
        ("repetition_penalty", 3.5e38),
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
        ("repetition_penalty", -1.5),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 3),
        ("presence_penalty", "1"),
        ("frequency_penalty", math.nan),
        ("frequency_penalty", -2.01),
        ("logit_bias", {-1: 1}),
        ("logit_bias", {1: 100.5}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: "2"}),
        ("logit_bias", {1: True}),
        ("logit_bias", {True: 1}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"\u0664": 1}),
        ("logit_bias", {2**31: 1}),
        ("logit_bias", {7: 1, "7": 2}),
        ("logit_bias", "1=2"),
        ("logit_bias", [1, 2]),
        ("logit_bias", 3),
        ("logit_bias", dict.fromkeys(range(1025), 0)),
        ("logprobs", 5),
        ("logprobs", 0),
        ("logprobs", "yes"),
        ("top_logprobs", -1),
        ("top_logprobs", 1001),
        ("top_logprobs", True),
        ("top_logprobs", 2.0),
        ("top_logprobs", None),
        ("prompt_logprobs", 0),
        ("prompt_logprobs", None),
        ("logprobs_mode", "both"),
        ("logprobs_mode", None),
        ("forced_token_ids", [-2]),
        ("forced_token_ids", [1.0]),
        ("forced_token_ids", [True]),
        ("forced_token_ids", "12"),
        ("forced_token_ids", 12),
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


def test_beginning_of_a_name_gets_the_shortest_one_that_it_begins() -> None:
    with pytest.raises(InvalidParameter, match="unknown sampling parameter 'temp'") as caught:
        SamplingParams().updated({"temp": 0})
    assert caught.value.remedy == "did you mean 'temperature'?"


def test_updated_checks_the_values() -> None:
    assert SamplingParams().updated({"max_tokens": 5}).max_tokens == 5
    with pytest.raises(InvalidParameter, match="top_p is 7"):
        SamplingParams().updated({"top_p": 7})


def test_vocabulary_check_names_the_id() -> None:
    SamplingParams(stop_token_ids=[299]).check_vocabulary(300)
    with pytest.raises(InvalidParameter, match=r"stop_token_ids is 300; allowed: token ids from 0 to 299"):
        SamplingParams(stop_token_ids=[300]).check_vocabulary(300)


@pytest.mark.parametrize("name", ["logit_bias", "forced_token_ids"])
def test_vocabulary_check_covers_every_field_with_token_ids(name: str) -> None:
    def made(token: int) -> SamplingParams:
        return SamplingParams(**{name: {token: 1.0} if name == "logit_bias" else [-1, token]})

    made(299).check_vocabulary(300)
    with pytest.raises(InvalidParameter, match=rf"{name} is 300; allowed: token ids from 0 to 299") as caught:
        made(300).check_vocabulary(300)
    assert caught.value.details["field"] == name


def test_logit_bias_takes_the_forms_of_python_and_json() -> None:
    want = ((2, -100.0), (7, 1.5))
    assert SamplingParams(logit_bias={7: 1.5, 2: -100}).logit_bias == want
    assert SamplingParams(logit_bias={"7": 1.5, "2": -100}).logit_bias == want
    assert SamplingParams(logit_bias=[(7, 1.5), (np.int32(2), np.float32(-100))]).logit_bias == want
    assert SamplingParams(logit_bias=None).logit_bias == ()
    assert SamplingParams(logit_bias=want).updated({"top_k": 3}).logit_bias == want


def test_logprobs_are_wanted_where_alternatives_are() -> None:
    assert not SamplingParams().wants_logprobs
    assert not SamplingParams(logprobs=False).wants_logprobs
    assert SamplingParams(logprobs=True).wants_logprobs
    assert SamplingParams(top_logprobs=1).wants_logprobs
    assert not SamplingParams(prompt_logprobs=True).wants_logprobs
    with pytest.raises(InvalidParameter, match="top_logprobs is 1; allowed: 0 where logprobs is false"):
        SamplingParams(logprobs=False, top_logprobs=1)


def test_params_are_frozen() -> None:
    with pytest.raises(AttributeError):
        SamplingParams().top_k = 3  # type: ignore[misc]
