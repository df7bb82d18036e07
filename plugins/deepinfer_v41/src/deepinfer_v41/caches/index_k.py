"""Index keys: what the indexer scores, one for each main KV entry, at the same block and slot (``spec/model.md`` 2.7).

They come from the latent before rotation and rounding, so they cannot be rebuilt from main KV.
"""

from __future__ import annotations

from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_v41.config import V41Config

NAME = "index"


def spec(config: V41Config, *, quantised: bool, block_size: int) -> CacheSpec:
    """Entries of ``index_head_dim`` channels; their block ids are those of main KV."""
    layers = [
        CacheLayer(
            layer=layer,
            entries=block_size // config.compress_ratios[layer],
            format="index_fp4" if quantised else "f32",
            width=config.index_head_dim,
            ratio=config.compress_ratios[layer],
        )
        for layer in config.kv_source_layer_ids
    ]
    return CacheSpec(name=NAME, pool="index", layers=layers)
