from typing import Any

import numpy as np
import pytest
from deepinfer_core.errors import InvalidParameter

from deepinfer_entropy_sampler.entropy import EntropyCap, entropy_bits
from deepinfer_entropy_sampler.plugin import deepinfer_sampler_create

SEED = 20


def rows(n: int, width: int = 50) -> Any:
    return np.random.default_rng(SEED).normal(size=(n, width)).astype(np.float32) * 3


def softmax(logits: Any) -> Any:
    p = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def test_rows_above_the_limit_come_down_to_it() -> None:
    bits = entropy_bits(EntropyCap(1.5).capped(rows(40)))[:, 0]
    before = entropy_bits(softmax(rows(40)))[:, 0]
    assert (before > 1.5).sum() > 10
    np.testing.assert_allclose(bits[before > 1.5], 1.5, atol=1e-9)


def test_rows_below_the_limit_stay_as_they_are_beside_others() -> None:
    logits = rows(40)
    before = softmax(logits)
    low = entropy_bits(before)[:, 0] <= 2.5
    assert 0 < low.sum() < 40
    np.testing.assert_allclose(EntropyCap(2.5).capped(logits)[low], before[low], rtol=1e-12)


def test_a_row_is_the_same_alone_and_in_company() -> None:
    logits = rows(20)
    together = EntropyCap(2.0).capped(logits)
    for i in range(20):
        assert (EntropyCap(2.0).capped(logits[i : i + 1])[0] == together[i]).all()


def test_forbidden_tokens_stay_forbidden_and_order_is_kept() -> None:
    logits = rows(1)
    logits[0, ::2] = -np.inf
    capped = EntropyCap(0.5).capped(logits)[0]
    assert (capped[::2] == 0).all()
    assert (np.argsort(-capped[1::2], kind="stable")[:3] == np.argsort(-logits[0, 1::2], kind="stable")[:3]).all()


def test_ties_of_the_best_are_all_that_is_left() -> None:
    capped = EntropyCap(0.5).capped(np.array([[1.0, 1.0, 0.0]], dtype=np.float32))
    np.testing.assert_allclose(capped, [[0.5, 0.5, 0.0]], atol=1e-12)


@pytest.mark.parametrize("max_bits", [0, -1, 33, float("nan"), "2", None, True])
def test_create_refuses_a_wrong_limit(max_bits: object) -> None:
    with pytest.raises(InvalidParameter, match="max_bits is"):
        deepinfer_sampler_create({"max_bits": max_bits})


def test_create_refuses_an_unknown_parameter() -> None:
    with pytest.raises(InvalidParameter, match="unknown parameter 'bits'"):
        deepinfer_sampler_create({"bits": 2})


def test_a_request_that_names_it_gives_the_same_tokens_every_time() -> None:
    from deepinfer_core import LLM, SamplingParams

    params = SamplingParams(max_tokens=12, seed=7, sampler={"name": "entropy", "params": {"max_bits": 1.0}})
    with LLM() as llm:
        alone = llm.generate("import os", params)[0]
        crowd = llm.generate(["def main", "import os", "class A"], params)[1]
    assert alone.error is None
    assert alone.token_ids == crowd.token_ids
