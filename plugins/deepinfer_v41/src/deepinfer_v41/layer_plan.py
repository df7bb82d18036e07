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

from enum import Enum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from deepinfer_v41.config import V41Config


class LayerKind(Enum):
    SWA = "swa"
    FULL = "full"
    REINDEX = "reindex"
    REUSE = "reuse"


@attrs.frozen
class LayerPlan:
    """One runtime layer. The sources are layer ids, None where the layer reads no such thing."""

    layer: int
    prefix: str
    """Checkpoint prefix: ``layers.3`` or ``mtp.0``."""
    kind: LayerKind
    ratio: int
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
                kv_source=nearest_source(config.kv_source_layer_ids, layer) if ratio else None,
                topk_source=nearest_source(config.index_source_layer_ids, layer) if ratio else None,
                candidate_source=source if own_topk and source is not None and layer > source else None,
                is_candidate_source=layer == source,
                engram=config.engram_layer_ids.index(layer) if layer in config.engram_layer_ids else None,
                is_draft_target=bool(config.num_nextn_predict_layers) and layer in config.dspark_target_layer_ids,
            )
        )
    for stage in range(config.num_nextn_predict_layers):
        plans.append(LayerPlan(n_backbone + stage, f"mtp.{stage}", LayerKind.SWA, 0, is_draft=True))
    return tuple(plans)


def _kind(config: V41Config, layer: int) -> LayerKind:
    if config.compress_ratios[layer] == 0:
        return LayerKind.SWA
    if layer in config.kv_source_layer_ids:
        return LayerKind.FULL
    return LayerKind.REINDEX if layer in config.index_source_layer_ids else LayerKind.REUSE
