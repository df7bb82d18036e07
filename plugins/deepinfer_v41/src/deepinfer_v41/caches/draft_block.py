"""Keys of the block that the draft head computes: a few entries for each sequence, beside its window rings.

They are read in the step that writes them and never again. In the ring they would take slots of positions that a
sample of the same prompt may still read; here they touch nothing. The stages run one after the other and share them.
"""

from __future__ import annotations

from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_v41.config import V41Config

NAME = "draft"


def layer(config: V41Config) -> int:
    """The owner in the spec: the first draft stage."""
    return config.num_hidden_layers


def spec(config: V41Config, *, quantised: bool) -> CacheSpec:
    """Entries as those of the rings, one for each row of a block."""
    entries = CacheLayer(
        layer=layer(config),
        entries=config.dspark_block_size,
        format="v41" if quantised else "f32",
        width=config.head_dim,
    )
    return CacheSpec(name=NAME, pool="swa", layers=[entries])
