"""Compressor rings: gate and latent of the tokens whose group is not complete (``spec/model.md`` 2.6, 4.4).

Only layers that compress more than one token into an entry keep any. FP32 always: rounding here would be rounding
before the softmax over a group.
"""

from __future__ import annotations

from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_v41.caches.swa_ring import backtrack
from deepinfer_v41.config import V41Config

NAME = "state"


def spec(config: V41Config, *, least: int = 0) -> CacheSpec:
    """Rows of ``[2, head_dim]`` (gate, latent): one group, and what may be rolled back."""
    layers = [
        CacheLayer(
            layer=layer,
            entries=config.compress_ratios[layer] + backtrack(config, least) - 1,
            format="f32",
            width=config.head_dim,
            ratio=config.compress_ratios[layer],
        )
        for layer in config.kv_source_layer_ids
        if config.compress_ratios[layer] > 1
    ]
    return CacheSpec(name=NAME, pool="state", layers=layers)
