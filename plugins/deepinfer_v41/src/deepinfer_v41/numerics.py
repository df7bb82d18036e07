"""The numeric modes: which type values have between ops, and what is quantised (``spec/model.md`` 2.0)."""

from __future__ import annotations

import torch
from attrs import frozen

from deepinfer_core.types import NumericMode
from deepinfer_v41.config import V41Config

Cast = tuple[str, int, str]
"""(element format, group, scale format), as the ops take it."""

Q8: Cast = ("e4m3", 32, "ue8m0")
Q4MX: Cast = ("e2m1", 32, "ue8m0")


@frozen
class Numerics:
    """``dtype`` of streams and activations; ``activations`` and ``index_query`` are casts, None where values stay."""

    dtype: torch.dtype
    activations: Cast | None
    index_query: Cast | None

    @classmethod
    def of(cls, config: V41Config, mode: NumericMode, *, cache_formats: bool) -> Numerics:
        """``released`` rounds as the release does; ``exact`` keeps FP32, the cache formats being on or off.

        Unquantised checkpoints (``config.quantized`` false) keep their activations unquantised in both modes.
        """
        released = mode == "released"
        return cls(
            dtype=torch.bfloat16 if released else torch.float32,
            activations=Q8 if released and config.quantized else None,
            index_query=Q4MX if cache_formats else None,
        )
