"""DeepSeek-V4.1 over a backend's ops and paged caches (``spec/model.md`` 2, mode ``off`` of 5.3).

The causal encoder-decoder split needs nothing special here: every row runs through every layer, and the decoder's
global KV is that of the first ratio-1 layer, as for any other owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer_contracts import InputMetadata
from deepinfer_core.errors import EngineError, ModelError, NotSupported
from deepinfer_core.interfaces import Backend, Caches
from deepinfer_core.types import NumericMode
from deepinfer_v41.block import Block
from deepinfer_v41.caches import swa_ring
from deepinfer_v41.config import V41Config
from deepinfer_v41.decode import DecodeStep
from deepinfer_v41.engram import EngramTables
from deepinfer_v41.layers.rope import RopeTables
from deepinfer_v41.numerics import Numerics
from deepinfer_v41.prefill import PrefillStep
from deepinfer_v41.prepare import WeightStore, one_hot_mix
from deepinfer_v41.step import Step
from deepinfer_v41.weights.loader import load_tensors


class V41Model:
    """The ``Model`` of ``deepinfer_core.interfaces``.

    :param numeric_mode: ``released`` or ``exact`` (``numerics.py``).
    :param cache_formats: Whether the caches that ``forward`` gets are in the released formats.
    :param max_positions: Positions that may occur; default is what the configuration allows.
    """

    def __init__(
        self,
        config: V41Config,
        backend: Backend,
        tables: EngramTables,
        *,
        numeric_mode: NumericMode = "released",
        cache_formats: bool = True,
        max_positions: int | None = None,
    ) -> None:
        self.config = config
        self.vocab_size = config.vocab_size
        self.numerics = Numerics.of(config, numeric_mode, cache_formats=cache_formats)
        self.draft_tensors: Mapping[str, Tensor] = {}
        """Raw tensors of the draft stages (``mtp.*``), for the draft head."""
        self._backend = backend
        self._tables = tables
        self._max_positions = max_positions or config.max_position_embeddings
        self._blocks: list[Block] = []

    def load(self, path: Path) -> None:
        """Read and prepare all weights. Raises CheckpointError that lists every problem."""
        tensors = load_tensors(path, self.config)
        self.draft_tensors = {name: t for name, t in tensors.items() if name.startswith("mtp.")}
        with torch.inference_mode():
            self._prepare(WeightStore(tensors, self._backend, self.numerics))

    def _prepare(self, weights: WeightStore) -> None:
        config = self.config
        self._ropes = RopeTables(config, self._backend, self._max_positions)
        self._embed = weights.activation("embed.weight")
        self._norm = weights.f32("norm.weight")
        self._head = weights.dense("head")
        self._blocks = [
            Block(plan, config, self._tables, weights, self._backend) for plan in config.layers if not plan.is_draft
        ]

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
        :returns: ``[T, D]`` rows after the final norm, as ``logits`` takes them.
        """
        if not self._blocks:
            raise ModelError("the model has no weights yet", remedy="call load(path) before forward")
        step = self._step(inputs, caches)
        streams, mhc = self.config.hc_mult, self._backend.mhc  # type: ignore[attr-defined]
        rows = torch.index_select(self._embed, 0, inputs.input_ids)
        stream = mhc.expand(rows, streams)
        mix = one_hot_mix(len(rows), streams, rows.device)
        for block in self._blocks:
            stream, mix = block(stream, mix, step)
        last = mhc.head(stream, mix)
        hidden, _ = self._backend.norm.rms(last, self._norm, eps=self.config.rms_norm_eps)  # type: ignore[attr-defined]
        return hidden  # type: ignore[no-any-return]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """``hidden [R, D]`` from ``forward`` -> f32 ``[R, V]``; ids without a token in the tokenizer get -inf."""
        gemm: Any = self._backend.gemm  # type: ignore[attr-defined]
        out: Tensor = gemm.dense(hidden, self._head, out_dtype=torch.float32)
        known = len(self._tables.token_map)
        if known < self.vocab_size:
            out[:, known:] = float("-inf")
        return out

    def _step(self, inputs: Any, caches: Caches) -> Step:
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
            ring=swa_ring.ring_length(config),
            max_q=swa_ring.backtrack(config),
        )
