"""Engram: rows of an n-gram table, gated into every stream before a block's attention (``spec/model.md`` 2.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_core.interfaces import Backend
from deepinfer_v41.config import V41Config
from deepinfer_v41.engram import EngramTables
from deepinfer_v41.prepare import WeightStore


class EngramLayer:
    """One layer's table, projection and gate. ``position`` is its place among the Engram layers."""

    def __init__(
        self,
        prefix: str,
        position: int,
        config: V41Config,
        tables: EngramTables,
        weights: WeightStore,
        backend: Backend,
    ) -> None:
        self._engram = backend.engram  # type: ignore[attr-defined]
        self._dense = backend.gemm.dense  # type: ignore[attr-defined]
        self._quantise = backend.quant.cast_per_token  # type: ignore[attr-defined]
        self._numerics = weights.numerics
        # The constants are read-only arrays shared by all readers; the op gets its own on the device.
        constants = (tables.multipliers[position], tables.primes[position], tables.offsets[position])
        self._hash = tuple(torch.tensor(values, device=backend.device) for values in constants)
        scale = weights.raw(f"{prefix}.embed.scale") if config.quantized else None
        self._table = self._engram.prepare(weights.raw(f"{prefix}.embed.weight"), scale)
        self._wkv = weights.dense(f"{prefix}.wkv")
        norms = weights.f32(f"{prefix}.q_weight"), weights.f32(f"{prefix}.k_weight")
        self._gate = self._engram.prepare_gate(*norms, norm_eps=config.rms_norm_eps)

    def __call__(self, stream: Tensor, ngram_ids: Tensor) -> Tensor:
        """``stream [T, C, D]``, ``ngram_ids`` i32 ``[T, N]`` (compressed ids, newest first) -> the stream after."""
        rows = self._engram.hash(ngram_ids, *self._hash)
        found: Any = self._engram.fetch(rows, self._table, dtype=self._numerics.dtype)
        if self._numerics.activations is not None:
            fmt, group, sf = self._numerics.activations
            found = self._quantise(found, fmt=fmt, group=group, sf=sf)
        out: Tensor = self._engram.gate(stream, self._dense(found, self._wkv), self._gate)
        return out
