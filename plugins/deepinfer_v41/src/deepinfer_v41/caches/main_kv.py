"""Main KV: one latent for every ``ratio`` tokens, in blocks that a table addresses (``spec/model.md`` 2.6, 4.1).

Owned by the layers with a compressor; all layers up to the next owner read it. Written when a group completes, then
never changed, except that a rolled-back position is written again.
"""

from __future__ import annotations

from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_v41.config import V41Config

NAME = "main"


def entry_format(config: V41Config, *, quantised: bool) -> str:
    """FP4 with a scale for 16 channels; FP8 where the checkpoint asks for it (``use_fp4_sparse_kv`` false)."""
    if not quantised:
        return "f32"
    return "v41_fp4" if config.use_fp4_sparse_kv else "v41"


def spec(config: V41Config, *, quantised: bool, block_size: int) -> CacheSpec:
    """Entries of ``head_dim`` channels, ``block_size / ratio`` a block."""
    form = entry_format(config, quantised=quantised)
    layers = [
        CacheLayer(
            layer=layer,
            entries=block_size // config.compress_ratios[layer],
            format=form,
            width=config.head_dim,
            ratio=config.compress_ratios[layer],
        )
        for layer in config.kv_source_layer_ids
    ]
    return CacheSpec(name=NAME, pool="main", layers=layers)
