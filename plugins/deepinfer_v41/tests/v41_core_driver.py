"""Drives a model with the native core's scheduler and packer, feeding given tokens instead of sampling.

Same model, caches and results as ``v41_driver.Driver``; what differs is who decides the steps and packs the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from attrs import define, field
from torch import Tensor
from v41_driver import Driver

from deepinfer_contracts import Pool, SamplerOutput
from deepinfer_native import Core, CoreConfig


@define(frozen=True)
class Forced:
    """A prompt, and the tokens that decode steps are then fed one by one."""

    prompt: Sequence[int]
    follow: Sequence[int] = ()

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.follow]


@define(eq=False)
class Computed:
    """What the steps of one request computed. A prefix hit skips the positions before ``start``."""

    start: int = 0
    replayed: int = 0
    rows: dict[int, Tensor] = field(factory=dict)
    """Position -> hidden row; a preempted request computes its rows again."""
    ngrams: dict[int, list[int]] = field(factory=dict)
    blocks: list[int] = field(factory=list)
    admissions: int = 0

    @property
    def hit(self) -> int:
        """Positions whose compressed entries were there already."""
        return self.start + self.replayed


def core_config(driver: Driver, chunk: int, blocks: int, slots: int, **settings: Any) -> CoreConfig:
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
        **settings,
    )


class CoreDriver:
    """One core over the caches of ``driver``. It may take every block and slot, so the driver itself must be idle."""

    def __init__(self, driver: Driver, *, chunk: int = 4096, **settings: Any) -> None:
        self.driver = driver
        self.core = Core(core_config(driver, chunk, len(driver.blocks) + 1, len(driver.slots) + 1, **settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.core.close()

    def run(self, work: Sequence[Forced], *, before_step: Callable[[], object] | None = None) -> list[Computed]:
        """Run all requests of ``work`` together to their end."""
        core = self.core
        requests = {
            core.submit(r.prompt, max_tokens=len(r.follow) + 1, ignore_eos=True, temperature=0.0): (r, Computed())
            for r in work
        }
        while core.unfinished:
            if before_step is not None:
                before_step()
            step = core.schedule_local()
            if step.num_reqs == 0:
                raise AssertionError(f"nothing was scheduled: {core.stats()}")
            self._step(step, requests)
        core.check()
        core.audit()
        return [computed for _, computed in requests.values()]

    def _step(self, step: Any, requests: dict[int, tuple[Forced, Computed]]) -> None:
        core, driver = self.core, self.driver
        for pool, unit in step.zero_slots.tolist():
            driver.caches.zero(Pool(pool).name.lower(), [unit])
        lengths, ends = step.seqlens_q.tolist(), step.seqlens_k.tolist()
        packed = core.pack(step.step_id)
        grams = np.split(packed.ngram_token_ids, np.cumsum(lengths)[:-1])
        hidden = driver.model.forward(driver.backend.bind_inputs(packed), driver.caches).split(lengths)
        tokens = []
        for i, (uid, part, end) in enumerate(zip(step.seq_uid.tolist(), hidden, ends, strict=True)):
            request, computed = requests[uid]
            positions = range(end - len(part), end)
            hit = int(step.hit_tokens[i])
            if positions.start == hit:  # the first chunk, maybe of another life
                computed.admissions += 1
                computed.start, computed.replayed = hit, int(step.replayed_tokens[i])
            computed.rows.update(zip(positions, part, strict=True))
            computed.ngrams.update(zip(positions, grams[i].tolist(), strict=True))
            computed.blocks = step.bt_ids[step.bt_offsets[i] : step.bt_offsets[i + 1]].tolist()
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

    def logits(self, request: Forced, computed: Computed) -> Tensor:
        """Of all positions from ``computed.start`` on: those of the prompt, then those of the follow-up tokens."""
        rows = [computed.rows[p] for p in range(computed.start, len(request.tokens))]
        return self.driver.model.logits(torch.stack(rows))


def run_forced(driver: Driver, work: Sequence[Forced], *, chunk: int = 4096) -> list[Tensor]:
    """Logits of all rows of each request: its prompt, prefilled in chunks, then its follow-up tokens, decoded."""
    with CoreDriver(driver, chunk=chunk) as core:
        return [core.logits(r, c) for r, c in zip(work, core.run(work), strict=True)]
