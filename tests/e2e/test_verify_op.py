"""The op ``sample.verify`` of backend ``cpu`` and the canonical sampler decide alike, though they share no code."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from deepinfer_contracts import SamplerInputs
from deepinfer_cpu.ops.accept import verify
from deepinfer_samplers.canonical import CanonicalSampler

N, K, V = 48, 3, 40


class Block:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits

    def step(self, k: int, previous: object) -> tuple[torch.Tensor, None]:
        return self.logits[k], None


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_op_and_sampler_give_the_same_tokens(mode: str, temperature: float) -> None:
    draw = np.random.default_rng(3)
    counts = draw.integers(1, K + 2, N).astype(np.int32)
    first = (np.cumsum(counts) - counts).astype(np.int32)
    rows = int(counts.sum())
    owner = np.repeat(np.arange(N), counts)
    offset = np.arange(rows) - first[owner]
    seeds = draw.integers(0, 2**63, N).astype(np.uint64)
    proposals = torch.from_numpy(draw.normal(size=(K, N, V)).astype(np.float32) * 2)
    targets = torch.from_numpy(draw.normal(size=(rows, V)).astype(np.float32) * 0.4)
    targets += proposals[np.minimum(offset, K - 1), owner]

    def inputs(position: int, **more: np.ndarray) -> SamplerInputs:
        def full(value: float, dtype: type = np.float32) -> np.ndarray:
            return np.full(N, value, dtype)

        return SamplerInputs(
            selected_rows=np.arange(rows, dtype=np.int32),
            temperature=full(temperature),
            top_p=full(1),
            min_p=full(0),
            repetition_penalty=full(1),
            presence_penalty=full(0),
            frequency_penalty=full(0),
            top_k=full(-1, np.int32),
            seed=seeds,
            sample_pos=full(position, np.int32),
            stop_ids=np.zeros((N, 0), np.int32),
            draft_write_slot=np.arange(1, N + 1, dtype=np.int32),
            **more,
        )

    sampler = CanonicalSampler(V, num_draft=K, is_coupled=mode == "coupled")
    sampler.reserve(N)
    sampled = SimpleNamespace(sampled_ids=np.zeros(N, np.int32), accepted=None, verified_ids=None)
    drafts, _ = sampler.draft(Block(proposals), inputs(6), sampled, K)
    places = np.where(offset < counts[owner] - 1, (owner + 1) * K + offset, 0).astype(np.int32)
    out = sampler.sample(targets, inputs(7, first_row=first, row_count=counts, draft_rows=places))

    params = SimpleNamespace(
        temperature=torch.full((rows,), temperature),
        top_p=torch.ones(rows),
        top_k=torch.full((rows,), -1),
        min_p=None,
        seeds=torch.from_numpy(seeds.view(np.int64)[owner]),
        positions=torch.from_numpy(7 + offset),
        first_row=torch.from_numpy(np.append(first, rows)),
    )
    step = np.minimum(offset, K - 1)
    scale = temperature or 1.0
    draft = SimpleNamespace(
        tokens=torch.from_numpy(drafts[owner, step]),
        logprobs=torch.log_softmax(proposals[step, owner] / scale, 1),
    )
    wanted = verify(targets, params, draft, mode=mode)
    assert out.sampled_ids.tolist() == wanted["sampled_ids"].tolist()
    assert out.accepted.tolist() == wanted["accepted"].tolist()
    assert out.verified_ids.tolist() == wanted["verified_ids"].tolist()
    assert set(out.accepted.tolist()) >= {0, 1, 2}
