"""Ops that do several steps in one launch: the same output, and left alone where more is asked for."""

import numpy as np
import pytest
import torch
from samplers_step import sampler_inputs

from deepinfer_samplers import ranking, shortcuts
from deepinfer_samplers.canonical import CanonicalSampler
from deepinfer_samplers.draw import draw
from deepinfer_samplers.filters import process
from deepinfer_samplers.fused import FusedOps
from deepinfer_samplers.gumbel import coupled
from deepinfer_samplers.rows import Preparation

MIXED = {
    "temperature": [0.0, 1.0, 0.7, 1.3, 1e-8, 2.0],
    "top_k": [-1, 2, 40, 10**9, 5, 7],
    "top_p": [1.0, 1.0, 0.9, 0.5, 0.2, 0.95],
    "min_p": [0.0, 0.0, 0.0, 0.05, 0.0, 0.1],
    "seed": [1, 2**64 - 1, 4, 5, 6, 8],
    "sample_pos": [10, 11, 13, 14, 15, 17],
}


class Ops:
    """The two ops, step by step; counts what was asked of them."""

    def __init__(self):
        self.calls = []

    def best(self, logits):
        self.calls.append("best")
        ids = ranking.best(logits)
        return ids, logits.gather(1, ids.unsqueeze(1)).squeeze(1)

    def choose(self, logits, peaks, params, keys, *, coupled=False):
        self.calls.append("choose")
        distribution = process(logits, peaks, params)
        tokens = self.coupled(distribution, keys) if coupled else draw(distribution.probabilities, keys)
        return tokens, distribution.logprobs(tokens)

    coupled = staticmethod(coupled)

    def table(self):
        return {"sample.best": self.best, "sample.choose": self.choose}


def sampled(ops, *, is_coupled=False, **changes):
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(5)) * 3
    preparation = Preparation(300, fused=FusedOps.of(ops))
    sampler = CanonicalSampler(300, is_coupled=is_coupled, preparation=preparation)
    return sampler.sample(logits, sampler_inputs(6, **(MIXED | changes)))


@pytest.mark.parametrize("is_coupled", [False, True])
def test_sample_with_fused_ops_gives_the_output_of_the_steps(is_coupled):
    ops = Ops()
    got, expected = sampled(ops.table(), is_coupled=is_coupled), sampled({}, is_coupled=is_coupled)
    assert ops.calls == ["best", "choose"]
    np.testing.assert_array_equal(got.sampled_ids, expected.sampled_ids)
    np.testing.assert_array_equal(got.sampled_logprob.view(np.int32), expected.sampled_logprob.view(np.int32))
    np.testing.assert_array_equal(got.row_status, expected.row_status)


def test_sample_with_one_of_the_ops_does_the_rest_in_steps():
    ops = Ops()
    got = sampled({"sample.best": ops.best})
    assert ops.calls == ["best"]
    np.testing.assert_array_equal(got.sampled_ids, sampled({}).sampled_ids)


@pytest.mark.parametrize(
    "asked",
    [{"forced": [-1, 3, -1, -1, -1, -1]}, {"top_logprobs": [0, 2, 0, 0, 0, 0], "max_top_logprobs": 2}],
    ids=["forced", "top"],
)
def test_sample_that_needs_the_distribution_does_not_choose_in_one_launch(asked):
    ops = Ops()
    got, expected = sampled(ops.table(), **asked), sampled({}, **asked)
    assert "choose" not in ops.calls
    np.testing.assert_array_equal(got.sampled_ids, expected.sampled_ids)
    np.testing.assert_array_equal(got.sampled_logprob, expected.sampled_logprob)


def test_arrays_that_are_sent_together_arrive_as_they_are():
    arrays = [
        np.arange(3, dtype=np.float32),
        np.arange(10, dtype=np.int64)[::2],
        np.zeros(0, np.int64),
        np.array([2**62, -1], np.int64),
        np.array([0.5], np.float32),
        np.arange(6, dtype=np.int32).reshape(3, 2).T,
        np.zeros((2, 0), np.int64),
        np.eye(3, dtype=np.bool_),
    ]
    sent = []

    def send(packed):
        sent.append(torch.from_numpy(packed.copy()))
        return sent[-1]

    there = shortcuts.sent_together(arrays, send)
    assert len(sent) == 1
    for array, tensor in zip(arrays, there, strict=True):
        assert tensor.storage_offset() * tensor.element_size() % 16 == 0
        assert tensor.dtype == torch.from_numpy(array[:0]).dtype
        assert np.array_equal(tensor.numpy(), array)
    assert shortcuts.sent_together([], send) == []
