"""Drives a model step by step over packed inputs, without an engine.

Two packers give the same fields: ``reference_pack`` (plain Python), and the native core's (``v41_core_driver.py``).
This one can also do what a scheduler would never do: any split into chunks, a decode step anywhere, several rows of one
sequence in a step, rolling back, slots and blocks in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from attrs import define, evolve, field
from torch import Tensor

from deepinfer_contracts import InputMetadataV41, ReplayMode
from deepinfer_core.types import SchedulerHints
from deepinfer_native.reference_pack import Geometry, Row, pack_decode, pack_prefill


@define(eq=False)
class Sequence_:
    """One sequence: its ids, and how many of them the caches hold."""

    tokens: list[int]
    block_table: list[int]
    swa_slot: int
    state_slot: int
    done: int = 0
    swa_valid_start: int = 0
    store_from: int = 0
    """After a prefix hit: where windows begin, and the first position whose entries are this sequence's own."""
    keep_from: int = 0
    replay_mode: ReplayMode = ReplayMode.OFF
    """Bounded replay: the first position of the decoder half, and whether rows in front of it are left out."""

    def row(self, q: int, g: Geometry) -> Row:
        blocks = self.block_table[: -(-(self.done + q) // g.block_size)]
        slots = self.swa_slot, self.state_slot
        replay = self.keep_from, self.replay_mode
        return Row(self.tokens, self.done, q, blocks, *slots, self.swa_valid_start, self.store_from, *replay)


def geometry(hints: SchedulerHints, block_size: int, max_len: int) -> Geometry:
    return Geometry(
        block_size=block_size,
        window=hints.window,
        swa_ring=hints.swa_ring,
        ratios_sparse=tuple(hints.ratios_sparse),
        ratios_dense=tuple(hints.ratios_dense),
        max_blocks=-(-max_len // block_size),
        ngram=hints.ngram,
        ngram_table=hints.ngram_table,
        ngram_pad=hints.ngram_pad,
    )


@define(eq=False)
class Proposal:
    """Greedy drafts ``[N, K]``, their confidences ``[N, K]`` and logits ``[N, K, V]``."""

    tokens: Tensor
    confidences: Tensor
    logits: Tensor


@define(eq=False)
class Driver:
    """Hands out blocks and slots (in a shuffled order, so that nothing works by luck), packs, runs, advances."""

    model: Any
    backend: Any
    caches: Any
    geometry: Geometry
    blocks: list[int] = field(factory=list)
    slots: list[int] = field(factory=list)
    inputs: Any = None
    """Of the last step."""
    replay_inputs: ReplayMode = ReplayMode.OFF
    """What the inputs of a prefill step say about bounded replay."""

    def open(self, ids: Sequence[int], room: int = 64) -> Sequence_:
        """A sequence with room for ``ids`` and ``room`` more."""
        n = -(-(len(ids) + room) // self.geometry.block_size)
        table = [self.blocks.pop() for _ in range(min(n, self.geometry.max_blocks))]
        slot = self.slots.pop()
        return Sequence_(list(ids), table, slot, slot)

    def close(self, *sequences: Sequence_) -> None:
        for s in sequences:
            self.blocks[:0] = s.block_table
            self.slots.insert(0, s.swa_slot)

    def run(self, work: Sequence[tuple[Sequence_, int]], *, prompt: bool) -> Tensor:
        """One step over ``q`` rows of each sequence -> hidden rows of all, in order."""
        g = self.geometry
        rows = [s.row(q, g) for s, q in work]
        fields = pack_prefill(rows, evolve(g, replay_mode=self.replay_inputs)) if prompt else pack_decode(rows, g)
        if not prompt:
            width = max(len(r.block_table) for r in rows)
            tables = [list(r.block_table) + [0] * (width - len(r.block_table)) for r in rows for _ in range(r.q)]
            fields["block_tables"] = np.asarray(tables, dtype=np.int32)
        self.inputs = self.backend.bind_inputs(InputMetadataV41(**fields))
        hidden = self.model.forward(self.inputs, self.caches)
        for s, q in work:
            s.done += q
        return hidden

    def prefill(self, s: Sequence_, upto: int, chunk: int) -> list[Tensor]:
        out = []
        while s.done < upto:
            out.append(self.run([(s, min(chunk, upto - s.done))], prompt=True))
        return out

    def decode(self, s: Sequence_, upto: int, q: int = 1) -> list[Tensor]:
        out = []
        while s.done < upto:
            out.append(self.run([(s, min(q, upto - s.done))], prompt=False))
        return out

    def draft(
        self, sampled: Sequence[int], accepted: Sequence[int] | None = None, count: int | None = None
    ) -> Proposal:
        """The greedy drafts of the last step: of each request, the token that it sampled and the drafts it accepted."""
        device = self.backend.device
        kept = None if accepted is None else torch.tensor(accepted, dtype=torch.int32, device=device)
        previous = torch.tensor(sampled, dtype=torch.int32, device=device)
        block = self.model.draft(None, self.inputs, previous, kept, self.caches)
        logits, confidences, drawn = [], [], []
        for k in range(self.model._draft_tokens if count is None else count):
            row, confidence = block.step(k, previous)
            previous = row.argmax(-1)
            logits.append(row)
            confidences.append(confidence)
            drawn.append(previous)
        return Proposal(*(torch.stack(parts, 1).cpu() for parts in (drawn, confidences, logits)))

    def all_logits(self, ids: Sequence[int], *, chunk: int = 4096, split: int | None = None, q: int = 1) -> Tensor:
        """Logits of every row, on the host: ``ids[:split]`` prefilled in chunks, the others decoded ``q`` at a time."""
        s = self.open(ids)
        split = len(ids) if split is None else split
        hidden = torch.cat(self.prefill(s, split, chunk) + self.decode(s, len(ids), q))
        self.close(s)
        return self.model.logits(hidden).cpu()

    def greedy_batch(self, prompts: Sequence[Sequence[int]], steps: int) -> tuple[list[list[int]], list[list[float]]]:
        """Best tokens of each step, and their distance to the second best, for several prompts in one batch."""
        sequences = [self.open(ids) for ids in prompts]
        last = np.cumsum([len(ids) for ids in prompts]) - 1
        hidden = self.run([(s, len(s.tokens)) for s in sequences], prompt=True)[torch.as_tensor(last)]
        tokens: list[list[int]] = [[] for _ in prompts]
        gaps: list[list[float]] = [[] for _ in prompts]
        for step in range(steps):
            best = torch.topk(self.model.logits(hidden), 2)
            for i, s in enumerate(sequences):
                tokens[i].append(int(best.indices[i, 0]))
                gaps[i].append(float(best.values[i, 0] - best.values[i, 1]))
                s.tokens.append(tokens[i][-1])
            if step + 1 < steps:
                hidden = self.run([(s, 1) for s in sequences], prompt=False)
        self.close(*sequences)
        return tokens, gaps
