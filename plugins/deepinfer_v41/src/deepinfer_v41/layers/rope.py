"""Rotary tables: one for window-only layers, one (YaRN) for all compressed layers (``spec/model.md`` 2.0)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from deepinfer_core.interfaces import Backend
from deepinfer_v41.config import V41Config


class RopeTables:
    """Angles for positions ``[0, max_positions)``; FP32 products of FP32 factors, so that all readers agree."""

    def __init__(self, config: V41Config, backend: Backend, max_positions: int) -> None:
        self._rows = backend.transform.rope_rows  # type: ignore[attr-defined]
        table = backend.transform.rope_table  # type: ignore[attr-defined]
        dim = config.qk_rope_head_dim
        scaling = {
            "factor": config.rope_factor,
            "beta_fast": config.beta_fast,
            "beta_slow": config.beta_slow,
            "original_max_position_embeddings": config.original_seq_len,
        }
        self._window = table(max_positions, dim, theta=config.rope_theta)
        self._compressed = table(max_positions, dim, theta=config.compress_rope_theta, scaling=scaling)

    def rows(self, ratio: int, positions: Tensor) -> Any:
        """The angles of ``positions`` (i32) in layers of ``ratio``; made once a step and shared by its layers."""
        return self._rows(self._compressed if ratio else self._window, positions)
