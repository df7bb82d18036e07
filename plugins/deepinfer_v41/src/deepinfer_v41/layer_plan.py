"""What each layer does and whose caches it reads, derived from the source lists of the configuration.

kind      owns main KV and index K   own indexer query and top-k   reads
--------  -------------------------  ----------------------------  ------------------------------------------
SWA       no                         no                            its window only (ratio 0; draft stages too)
FULL      yes                        yes                           its own entries
REINDEX   no                         yes                           entries of the nearest FULL layer at or before
REUSE     no                         no                            those entries, top-k of the nearest index source
(spec/model.md 1.1)
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING

import attrs
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from deepinfer_v41.config import V41Config


class LayerKind(Enum):
    SWA = "swa"
    FULL = "full"
    REINDEX = "reindex"
    REUSE = "reuse"


@attrs.frozen
class RopeParameters:
    """Rotary table of one layer over the last ``dim`` channels. ``factor`` 1 means no YaRN."""

    dim: int
    theta: float
    factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_seq_len: int = 0

    def frequencies(self) -> npt.NDArray[np.float32]:
        """``[dim/2]`` f32, computed in float64 and rounded once (spec/model.md 2.0)."""
        plain = self.theta ** (-2.0 * np.arange(self.dim // 2, dtype=np.float64) / self.dim)
        if self.factor == 1.0:
            return plain.astype(np.float32)

        def channel(rotations: float) -> float:
            # The (fractional) channel that turns `rotations` times over the original context.
            turns = math.log(self.original_seq_len / (2 * math.pi * rotations))
            return self.dim * turns / (2 * math.log(self.theta))

        low = max(math.floor(channel(self.beta_fast)), 0)
        high = min(math.ceil(channel(self.beta_slow)), self.dim - 1)
        index = np.arange(self.dim // 2, dtype=np.float64)
        ramp = np.clip((index - low) / max(high - low, 1e-3), 0.0, 1.0)
        return (plain * (1.0 - ramp) + plain / self.factor * ramp).astype(np.float32)


@attrs.frozen
class LayerPlan:
    """One runtime layer. The sources are layer ids, None where the layer reads no such thing."""

    layer: int
    prefix: str
    """Checkpoint prefix: ``layers.3`` or ``mtp.0``."""
    kind: LayerKind
    ratio: int
    rope: RopeParameters
    kv_source: int | None = None
    """The FULL layer whose main KV and index K this layer reads."""
    topk_source: int | None = None
    """The index source whose top-k list this layer uses (itself when it has an indexer)."""
    candidate_source: int | None = None
    """The layer whose candidate blocks restrict this layer's own top-k."""
    is_candidate_source: bool = False
    engram: int | None = None
    """Position in ``engram_layer_ids`` when the layer carries an Engram."""
    is_draft: bool = False
    is_draft_target: bool = False

    @property
    def has_compressor(self) -> bool:
        return self.kind is LayerKind.FULL

    @property
    def has_indexer(self) -> bool:
        return self.kind in (LayerKind.FULL, LayerKind.REINDEX)


def nearest_source(sources: tuple[int, ...], layer: int) -> int | None:
    """The last source at or before ``layer``."""
    return max((source for source in sources if source <= layer), default=None)


def plan_layers(config: V41Config) -> tuple[LayerPlan, ...]:
    """The plans of all runtime layers of a checked configuration."""
    plain = RopeParameters(config.qk_rope_head_dim, config.rope_theta)
    yarn = RopeParameters(
        config.qk_rope_head_dim,
        config.compress_rope_theta,
        config.rope_factor,
        config.beta_fast,
        config.beta_slow,
        config.original_seq_len,
    )
    n_backbone = config.num_hidden_layers
    plans = []
    for layer in range(n_backbone):
        ratio = config.compress_ratios[layer]
        kind = _kind(config, layer)
        own_topk = kind in (LayerKind.FULL, LayerKind.REINDEX)
        source = config.candidate_source_layer_id
        plans.append(
            LayerPlan(
                layer=layer,
                prefix=f"layers.{layer}",
                kind=kind,
                ratio=ratio,
                rope=yarn if ratio else plain,
                kv_source=nearest_source(config.kv_source_layer_ids, layer) if ratio else None,
                topk_source=nearest_source(config.index_source_layer_ids, layer) if ratio else None,
                candidate_source=source if own_topk and source is not None and layer > source else None,
                is_candidate_source=layer == source,
                engram=config.engram_layer_ids.index(layer) if layer in config.engram_layer_ids else None,
                is_draft_target=bool(config.num_nextn_predict_layers) and layer in config.dspark_target_layer_ids,
            )
        )
    for stage in range(config.num_nextn_predict_layers):
        plans.append(LayerPlan(n_backbone + stage, f"mtp.{stage}", LayerKind.SWA, 0, plain, is_draft=True))
    return tuple(plans)


def _kind(config: V41Config, layer: int) -> LayerKind:
    if config.compress_ratios[layer] == 0:
        return LayerKind.SWA
    if layer in config.kv_source_layer_ids:
        return LayerKind.FULL
    return LayerKind.REINDEX if layer in config.index_source_layer_ids else LayerKind.REUSE
