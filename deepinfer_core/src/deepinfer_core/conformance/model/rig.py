"""Drives a model step by step over packed inputs, without an engine and without sampling.

It packs with the plain packer of the native core, and can do what a scheduler never would: any split into chunks, a
decode step anywhere, several rows of a sequence in a step, rolling back, blocks and slots in any order. Memory that
nobody owns is full of poison: whoever reads it gets NaN or the largest number, and another result.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from attrs import define, evolve, field

from deepinfer_core.config import EngineConfig
from deepinfer_core.conformance.failures import require_equal
from deepinfer_core.types import CacheSpec, ReplayModeName, SchedulerHints

NULL = 0
"""The unit of each pool that is never handed out."""


@define(eq=False)
class Text:
    """One sequence: its tokens, and how many of them the caches hold."""

    tokens: list[int]
    blocks: list[int]
    swa_slot: int
    state_slot: int
    done: int = 0
    swa_valid_start: int = 0
    """After a prefix hit: where windows begin."""
    store_from: int = 0
    """After a prefix hit: the first position whose entries are this sequence's own."""
    keep_from: int = 0
    replay_mode: ReplayModeName = "off"
    """With bounded replay: the first row of the decoder half, and whether those in front of it are left out."""


@define(eq=False)
class Rig:
    """A loaded model over caches of its own."""

    model: Any
    backend: Any
    caches: Any
    specs: Sequence[CacheSpec]
    hints: SchedulerHints
    config: EngineConfig
    block_size: int
    max_len: int
    vocab_size: int
    """Ids that a prompt may hold."""
    free_blocks: list[int]
    free_slots: list[int]
    inputs: Any = field(default=None, init=False)
    """What the last step fed to the model, and what came back: for drafts."""
    hidden: Any = field(default=None, init=False)
    replay_inputs: ReplayModeName = field(default="off", init=False)
    """What the inputs of a prefill step say about bounded replay."""

    def prompt(self, length: int, seed: int) -> list[int]:
        """Random ids of the vocabulary."""
        draw = random.Random(seed)
        return [draw.randrange(self.vocab_size) for _ in range(length)]

    # --- memory ---------------------------------------------------------------------------------------------

    def open(self, tokens: Sequence[int], room: int = 0, shared: Sequence[int] = ()) -> Text:
        """A sequence with blocks for its tokens and ``room`` more; ``shared``: blocks that others own go first."""
        needed = -(-(len(tokens) + room) // self.block_size) - len(shared)
        blocks = [self.free_blocks.pop() for _ in range(needed)] if self.has_blocks else []
        slot = self.free_slots.pop()
        if self.pool_units("state"):  # as the scheduler asks for, whoever had the slot before
            self.caches.zero("state", [slot])
        if self.pool_units("swa") and self.hints.zero_swa_on_alloc:
            self.caches.zero("swa", [slot])
        return Text(list(tokens), [*shared, *blocks], slot, slot)

    def close(self, *texts: Text, keep: Sequence[int] = ()) -> None:
        """Give units back, poisoned; ``keep``: blocks that others go on using."""
        for text in texts:
            own = [block for block in text.blocks if block not in keep]
            self.poison(own, [text.swa_slot])
            self.free_blocks[:0] = own
            self.free_slots.insert(0, text.swa_slot)

    @property
    def has_blocks(self) -> bool:
        return any(spec.pool in ("main", "index") for spec in self.specs)

    def pool_units(self, pool: str) -> bool:
        return any(spec.pool == pool for spec in self.specs)

    def views(self) -> Iterator[tuple[str, str, Any]]:
        """(pool, name of the view, array or tensor by unit) of every cache and layer."""
        for spec in self.specs:
            for layer in spec.layers:
                view = self.caches.view(spec.name, layer.layer)
                yield spec.pool, f"{spec.name} of layer {layer.layer}", getattr(view, "tensor", view)

    def poison(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Fill units with NaN, or with the largest integer."""
        for pool, _, tensor in self.views():
            units = blocks if pool in ("main", "index") else slots
            value: Any = float("nan") if "float" in str(tensor.dtype) else 255 if "uint8" in str(tensor.dtype) else 127
            for unit in units:
                tensor[unit] = value

    def contents(self) -> dict[str, Any]:
        """A copy of all cache memory on the host, bytes by unit."""
        copies = {}
        for _, name, tensor in self.views():
            array = np.ascontiguousarray(np.array(self.backend.to_host(tensor), copy=True))
            copies[name] = array.reshape(len(array), -1).view(np.uint8).reshape(len(array), -1)
        return copies

    def pool_of(self, name: str) -> str:
        return next(pool for pool, view, _ in self.views() if view == name)

    # --- steps ----------------------------------------------------------------------------------------------

    def run(self, work: Sequence[tuple[Text, int]], *, prompt: bool) -> Any:
        """One step over ``q`` rows of each sequence: logits f32 ``[T, V]`` of all rows, in order, on the host."""
        self.inputs = self.backend.bind_inputs(self.pack(work, prompt=prompt))
        self.hidden = self.model.forward(self.inputs, self.caches)
        total = sum(q for _, q in work)
        require_equal(len(self.hidden), total, "forward returned another number of rows than it was given")
        for text, q in work:
            text.done += q
        return self.logits(self.hidden)

    def pack(self, work: Sequence[tuple[Text, int]], *, prompt: bool) -> Any:
        """The record of a step, on the host."""
        from deepinfer_contracts import ReplayMode
        from deepinfer_native.reference_pack import Row, i32, pack_decode, pack_prefill

        rows = []
        for text, q in work:
            blocks = text.blocks[: -(-(text.done + q) // self.block_size)]
            slots = text.swa_slot, text.state_slot
            row = Row(text.tokens, text.done, q, blocks, *slots, text.swa_valid_start, text.store_from)
            row.keep_from, row.replay_mode = text.keep_from, ReplayMode[text.replay_mode.upper()]
            rows.append(row)
        geometry = self.geometry
        if prompt:
            fields = pack_prefill(rows, evolve(geometry, replay_mode=ReplayMode[self.replay_inputs.upper()]))
        else:
            fields = pack_decode(rows, geometry)
        if not prompt and self.has_blocks:
            width = self.geometry.max_blocks
            tables = [[*r.block_table, *[NULL] * (width - len(r.block_table))] for r in rows for _ in range(r.q)]
            fields["block_tables"] = i32(tables)
        return self.record(fields)

    def record(self, fields: dict[str, Any]) -> Any:
        from deepinfer_contracts import InputMetadata, InputMetadataV41

        record = InputMetadataV41() if self.hints.inputs == "InputMetadataV41" else InputMetadata()
        for name, value in fields.items():
            if name in record.FIELDS:
                setattr(record, name, None if isinstance(value, dict) and not value else value)
        return record

    @property
    def geometry(self) -> Any:
        from deepinfer_native.reference_pack import Geometry

        hints = self.hints
        return Geometry(
            block_size=self.block_size,
            window=hints.window,
            swa_ring=hints.swa_ring or hints.window,
            ratios_sparse=tuple(hints.ratios_sparse),
            ratios_dense=tuple(hints.ratios_dense),
            max_blocks=-(-self.max_len // self.block_size),
            ngram=hints.ngram,
            ngram_table=hints.ngram_table,
            ngram_pad=hints.ngram_pad,
        )

    def logits(self, hidden: Any) -> Any:
        """Of hidden rows, f32 on the host."""
        logits = np.asarray(self.backend.to_host(self.model.logits(hidden)))
        require_equal(str(logits.dtype), "float32", "logits are not float32")
        require_equal(logits.shape[0], len(hidden), "logits has another number of rows than hidden")
        return logits

    def prefill(self, text: Text, upto: int, chunk: int = 10**9) -> list[Any]:
        out = []
        while text.done < upto:
            out.append(self.run([(text, min(chunk, upto - text.done))], prompt=True))
        return out

    def decode(self, text: Text, upto: int, q: int = 1) -> list[Any]:
        out = []
        while text.done < upto:
            out.append(self.run([(text, min(q, upto - text.done))], prompt=False))
        return out

    def rows(self, tokens: Sequence[int], *, chunk: int = 10**9, split: int | None = None, q: int = 1) -> Any:
        """Logits of every position of one sequence alone: ``tokens[:split]`` prefilled in chunks, the rest decoded."""
        text = self.open(tokens)
        parts = [
            *self.prefill(text, len(tokens) if split is None else split, chunk),
            *self.decode(text, len(tokens), q),
        ]
        self.close(text)
        return np.concatenate(parts)

    def device(self, values: Sequence[int]) -> Any:
        """int32 tokens or counts as a tensor of the backend."""
        from deepinfer_core.records import SamplerOutput

        return self.backend.bind_inputs(SamplerOutput(sampled_ids=np.asarray(values, np.int32))).sampled_ids
