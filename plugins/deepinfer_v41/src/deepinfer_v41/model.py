"""DeepSeek-V4.1 over a backend's ops and paged caches (``spec/model.md`` 2).

The causal encoder-decoder split needs little here: the decoder's global KV is that of the first ratio-1 layer, as for
any other owner. Where a step bounds the rows of the decoder half (5.3), that layer writes the global KV of all rows and
goes on with the others (``block.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer_contracts import InputMetadata
from deepinfer_core.errors import DeepInferError, EngineError, ModelError, NotSupported
from deepinfer_core.interfaces import Backend, Caches
from deepinfer_core.types import NumericMode, OpFloor
from deepinfer_v41.block import Block
from deepinfer_v41.caches import swa_ring
from deepinfer_v41.config import V41Config
from deepinfer_v41.decode import DecodeStep
from deepinfer_v41.draft_block import V41DraftBlock
from deepinfer_v41.draft_head import DraftHead
from deepinfer_v41.draft_step import DraftStep, last_known
from deepinfer_v41.engram import EngramTables
from deepinfer_v41.floors import Work, step_floors
from deepinfer_v41.layers.rope import RopeTables
from deepinfer_v41.numerics import Numerics
from deepinfer_v41.prefill import PrefillStep
from deepinfer_v41.prepare import WeightStore, one_hot_mix
from deepinfer_v41.step import BackboneStep
from deepinfer_v41.weights.dummy import DummyTensors
from deepinfer_v41.weights.loader import load_tensors


class V41Model:
    """The ``Model`` of ``deepinfer_core.interfaces``.

    :param numeric_mode: ``released`` or ``exact`` (``numerics.py``).
    :param cache_formats: Whether the caches that ``forward`` gets are in the released formats.
    :param max_positions: Positions that may occur; default is what the configuration allows.
    :param draft_tokens: Drafts of a step; 0 leaves the draft head out.
    :param confidence_temperatures: Of the draft head's confidences: one for all drafts, or one for each.
    :param backtrack: Positions that can be rolled back at least, as in the specs of the caches.
    """

    static_decode = True
    """The shapes of a decode step follow from those of its inputs, and nothing in it reads a value on the host: a
    backend may capture it once for a number of rows."""

    def __init__(
        self,
        config: V41Config,
        backend: Backend,
        tables: EngramTables,
        *,
        numeric_mode: NumericMode = "released",
        cache_formats: bool = True,
        max_positions: int | None = None,
        draft_tokens: int = 0,
        confidence_temperatures: Sequence[float] = (1.0,),
        backtrack: int = 0,
    ) -> None:
        self.config = config
        self.vocab_size = config.vocab_size
        self.numerics = Numerics.of(config, numeric_mode, cache_formats=cache_formats)
        self.draft_block = config.max_draft_tokens
        """Most drafts of a step that the checkpoint's head can propose; 0 without one."""
        self._backend = backend
        self._tables = tables
        self._max_positions = max_positions or config.max_position_embeddings
        self._draft_tokens, self._temperatures, self._backtrack = draft_tokens, confidence_temperatures, backtrack
        self._blocks: list[Block] = []
        self._draft_head: DraftHead | None = None

    def load(self, path: Path) -> None:
        """Read and prepare all weights. Raises CheckpointError that lists every problem."""
        tensors = load_tensors(path, self.config)
        with torch.inference_mode():
            self._prepare(WeightStore(tensors, self._backend, self.numerics))

    def load_dummy(self, seed: int) -> None:
        """Random weights in place of a checkpoint's, made on the backend's device: for measurements."""
        tensors = DummyTensors(
            self.config, device=self._backend.device, draft=bool(self._draft_tokens and self.draft_block), seed=seed
        )
        with torch.inference_mode():
            self._prepare(WeightStore(tensors, self._backend, self.numerics))

    def check_checkpoint(self, path: Path) -> str:
        """What ``load`` would check of the files: headers and scales. Returns what is there, in a few words.

        Raises CheckpointError that lists every problem.
        """
        tensors = load_tensors(path, self.config, draft="on" if self._draft_tokens else "auto")
        shards = tensors.num_shards
        text = f"{len(tensors)} tensors in {shards} file{'' if shards == 1 else 's'}"
        return f"{text}; {tensors.draft_note}" if tensors.draft_note else text

    def _prepare(self, weights: WeightStore) -> None:
        config = self.config
        # Rows in flight, and a block of drafts behind them, may lie beyond the last position of a request.
        spare = 4 * (self.draft_block + 1) if self._draft_tokens else 0
        self._ropes = RopeTables(config, self._backend, self._max_positions + spare)
        self._embed = weights.activation("embed.weight")
        self._norm = weights.f32("norm.weight")
        self._head = weights.dense("head")
        self._blocks = [
            Block(plan, config, self._tables, weights, self._backend) for plan in config.layers if not plan.is_draft
        ]
        if self._draft_tokens:
            self._draft_head = DraftHead(
                config,
                self._tables,
                weights,
                self._backend,
                draft_tokens=self._draft_tokens,
                temperatures=self._temperatures,
            )

    def floors(self, rows: int, context: int, *, prefill: bool = False, kept: int = 0) -> list[OpFloor]:
        """The least bytes and FLOP of each op of a step, without its draft head (``floors.py``)."""
        return step_floors(self.config, Work(rows, context, prefill), kept)

    def check_prompt(self, ids: Sequence[int]) -> None:
        """Refuse what the model cannot take although its ids are in the vocabulary: image placeholders.

        Raises NotSupported.
        """
        image = self.config.image_token_id
        if image is not None and image in ids:
            raise NotSupported(
                f"the prompt holds the image token {image} at position {list(ids).index(image)}",
                reason="image input is not part of this release",
                remedy="send text only",
            )

    @torch.inference_mode()
    def forward(self, inputs: InputMetadata, caches: Caches) -> Tensor:
        """Run all rows of a step and write the caches.

        :param inputs: An ``InputMetadataV41`` bound to the backend's device.
        :returns: ``[T, D]`` rows after the final norm, as ``logits`` takes them; 0 where bounded replay left a row out.
        """
        if not self._blocks:
            raise ModelError("the model has no weights yet", remedy="call load(path) before forward")
        step = self._step(inputs, caches)
        if self._draft_head is not None:
            step.taps = []
        streams, mhc = self.config.hc_mult, self._backend.mhc  # type: ignore[attr-defined]
        rows = torch.index_select(self._embed, 0, inputs.input_ids)
        stream = mhc.expand(rows, streams)
        mix = one_hot_mix(len(rows), streams, rows.device)
        layer = 0
        try:
            for layer, block in enumerate(self._blocks):
                if layer == self.config.n_prefill_layer and not step.needs_decoder:
                    block.write_global(stream, mix, step)
                    return rows.new_zeros(rows.shape)
                stream, mix = block(stream, mix, step)
        except DeepInferError as exc:
            exc.details.setdefault("layer", layer)
            raise
        if self._draft_head is not None and step.taps:
            self._draft_head.store_keys(step, step.taps)
        last = mhc.head(stream, mix)
        hidden, _ = self._backend.norm.rms(last, self._norm, eps=self.config.rms_norm_eps)  # type: ignore[attr-defined]
        return step.spread(hidden)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """``hidden [R, D]`` from ``forward`` -> f32 ``[R, V]``; ids without a token in the tokenizer get -inf."""
        gemm: Any = self._backend.gemm  # type: ignore[attr-defined]
        out: Tensor = gemm.dense(hidden, self._head, out_dtype=torch.float32)
        known = len(self._tables.token_map)
        if known < self.vocab_size:
            out[:, known:] = float("-inf")
        return out

    @torch.inference_mode()
    def draft(
        self, hidden: Tensor, inputs: InputMetadata, sampled_ids: Tensor, accepted: Tensor | None, caches: Caches
    ) -> V41DraftBlock:
        """Propose the drafts of a step that :meth:`forward` ran and that sampled ``sampled_ids`` int ``[N]``.

        ``accepted``: int ``[N]``, drafts of the step that hold; None: none, or a prefill step. ``hidden`` is not read:
        what the draft head takes of the backbone is in the caches.
        """
        return self.propose(self.draft_rows(inputs, sampled_ids, accepted), caches)

    @torch.inference_mode()
    def draft_rows(self, inputs: InputMetadata, sampled_ids: Tensor, accepted: Tensor | None) -> Mapping[str, Tensor]:
        """The rows of the blocks of all requests, by name; a fixed number of entries for each request."""
        self._require_draft_head()
        config = self.config
        last, slot = last_known(inputs, accepted)
        rows: Mapping[str, Tensor] = self._backend.meta.draft_inputs(  # type: ignore[attr-defined]
            sampled_ids.reshape(-1),
            last,
            slot,
            block=config.dspark_block_size,
            window=config.sliding_window,
            ring=swa_ring.ring_length(config, self._backtrack),
            noise=config.dspark_noise_token_id,
            vocab_size=config.vocab_size,
        )
        return rows

    @torch.inference_mode()
    def propose(self, rows: Mapping[str, Tensor], caches: Caches) -> V41DraftBlock:
        """The drafts that follow from :meth:`draft_rows`."""
        head, config = self._require_draft_head(), self.config
        step = DraftStep(caches, self._backend, self._ropes, config, rows)
        embedded = torch.index_select(self._embed, 0, rows["input_ids"])
        return head.propose(step, embedded, config.hc_mult, self.logits)

    def _require_draft_head(self) -> DraftHead:
        if self._draft_head is None:
            raise ModelError("the model was made without its draft head", remedy="make it with draft_tokens above 0")
        return self._draft_head

    def _step(self, inputs: Any, caches: Caches) -> BackboneStep:
        config = self.config
        if inputs.is_prompt:
            return PrefillStep(
                inputs, caches, self._backend, self._ropes, window=config.sliding_window, dtype=self.numerics.dtype
            )
        if inputs.block_tables is None and config.ratios:
            raise EngineError(
                "a decode step has no block tables",
                reason="InputMetadataV41.block_tables is absent; the compressed caches are addressed through it",
                remedy="expand the step's block lists to one row a token before forward",
            )
        return DecodeStep(
            inputs,
            caches,
            self._backend,
            self._ropes,
            window=config.sliding_window,
            ring=swa_ring.ring_length(config, self._backtrack),
            max_q=swa_ring.backtrack(config, self._backtrack),
        )
