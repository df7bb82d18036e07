"""The sampler against the ops ``sample.*`` of backend ``cpu``, which say what they mean by sorting."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from samplers_step import sampler_inputs

from deepinfer_samplers.canonical import CanonicalSampler

ops = pytest.importorskip("deepinfer_cpu.ops.sampling")

N, V = 64, 700
GIVEN = {
    "temperature": np.where(np.arange(N) % 5 == 4, 0.0, 0.5 + np.arange(N) % 3).astype(np.float32),
    "top_p": np.where(np.arange(N) % 2, 0.9, 1.0).astype(np.float32),
    "top_k": np.where(np.arange(N) % 3 == 1, 40, -1).astype(np.int32),
    "min_p": np.where(np.arange(N) % 4 == 3, 0.02, 0.0).astype(np.float32),
    "seed": np.arange(N, dtype=np.uint64) * np.uint64(7919),
    "sample_pos": np.arange(N, dtype=np.int32) + 3,
}


def test_sampler_and_ops_give_the_same_tokens_and_logprobs():
    logits = torch.randn(N, V, generator=torch.Generator().manual_seed(6)) * 3
    out = CanonicalSampler(V).sample(logits, sampler_inputs(N, **GIVEN))
    names = ("temperature", "top_p", "top_k", "min_p")
    logprobs = ops.logprobs(logits, SimpleNamespace(**{name: torch.from_numpy(GIVEN[name]) for name in names}))
    seeds = torch.from_numpy(GIVEN["seed"].view(np.int64))
    drawn = ops.draw(logprobs, seeds, torch.from_numpy(GIVEN["sample_pos"]))
    # The op draws from exp(log p), the sampler from p: one token in a thousand may lie on a boundary of the two.
    assert (out.sampled_ids == drawn.numpy()).sum() >= N - 1
    same = logprobs[torch.arange(N), torch.from_numpy(out.sampled_ids).long()]
    np.testing.assert_allclose(out.sampled_logprob, same, rtol=1e-4, atol=1e-5)
