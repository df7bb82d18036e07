"""Drives a model with the native core's scheduler and packer, feeding given tokens instead of sampling.

Same model, caches and results as ``v41_driver.Driver``; what differs is who decides the steps and packs the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import define
from torch import Tensor
from v41_driver import Driver

from deepinfer_contracts import SamplerOutput
from deepinfer_native import Core, CoreConfig


@define(frozen=True)
class Forced:
    """A prompt, and the tokens that decode steps are then fed one by one."""

    prompt: Sequence[int]
    follow: Sequence[int] = ()


def core_config(driver: Driver, chunk: int, blocks: int, slots: int) -> CoreConfig:
    g, config = driver.geometry, driver.model.config
    return CoreConfig(
        num_blocks=blocks,
        num_swa_slots=slots,
        num_state_slots=slots,
        max_num_seqs=slots - 1,
        max_num_batched_tokens=max(chunk, slots - 1, 4096),
        max_model_len=config.max_position_embeddings,
        vocab_size=config.vocab_size,
        block_size=g.block_size,
        max_chunk=chunk,
        chunk_align=1,
        window=g.window,
        backtrack=g.swa_ring - g.window,
        swa_ring=g.swa_ring,
        ratios_sparse=g.ratios_sparse,
        ngram=g.ngram,
        ngram_table=g.ngram_table,
        ngram_pad=g.ngram_pad,
        inputs="InputMetadataV41",
        validation="full",
    )


def run_forced(driver: Driver, work: Sequence[Forced], *, chunk: int = 4096) -> list[Tensor]:
    """Logits of all rows of each request: its prompt, prefilled in chunks, then its follow-up tokens, decoded.

    The core may take every block and slot of the driver's caches, so the driver itself must be idle.
    """
    blocks, slots = len(driver.blocks) + 1, len(driver.slots) + 1
    rows: dict[int, dict[int, Tensor]] = {}  # by position: a preempted request computes its rows again
    with Core(core_config(driver, chunk, blocks, slots)) as core:
        requests = {
            core.submit(r.prompt, max_tokens=len(r.follow) + 1, ignore_eos=True, temperature=0.0): r for r in work
        }
        while core.unfinished:
            step = core.schedule_local()
            if step.num_reqs == 0:
                raise AssertionError(f"nothing was scheduled: {core.stats()}")
            uids, lengths, ends = step.seq_uid.tolist(), step.seqlens_q.tolist(), step.seqlens_k.tolist()
            inputs = driver.backend.bind_inputs(core.pack(step.step_id))
            hidden = driver.model.forward(inputs, driver.caches).split(lengths)
            tokens = []
            for uid, part, end in zip(uids, hidden, ends, strict=True):
                rows.setdefault(uid, {}).update(zip(range(end - len(part), end), part, strict=True))
                request = requests[uid]
                after = end - len(request.prompt)
                tokens.append(request.follow[after] if 0 <= after < len(request.follow) else 0)
            core.commit(
                step.step_id,
                SamplerOutput(
                    sampled_ids=np.array(tokens, dtype=np.int32),
                    sampled_logprob=np.zeros(len(tokens), dtype=np.float32),
                    row_status=np.zeros(len(tokens), dtype=np.int8),
                ),
            )
            core.step_done(step.step_id)
        core.audit()
    out = []
    for uid, request in requests.items():
        count = len(request.prompt) + len(request.follow)
        out.append(driver.model.logits(torch.stack([rows[uid][p] for p in range(count)])))
    return out
