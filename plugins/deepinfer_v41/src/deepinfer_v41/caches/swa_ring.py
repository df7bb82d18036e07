"""Window KV: a ring for each sequence in every layer, draft stages included (``spec/model.md`` 2.5, 4.4).

Position ``p`` lives at slot ``p mod ring``. The ring is longer than the window by the positions that may be rolled
back, so that a rejected draft never overwrites a key that is still needed.
"""

from __future__ import annotations

from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_v41.config import V41Config

NAME = "swa"


def backtrack(config: V41Config, least: int = 0) -> int:
    """How many positions a sequence may be rolled back: one step's drafts and the token before them.

    ``least``: the setting ``max_backtracking_tokens``.
    """
    return max(least, config.max_draft_tokens + 1)


def ring_length(config: V41Config, least: int = 0) -> int:
    """Slots of a ring."""
    return config.sliding_window + backtrack(config, least)


def spec(config: V41Config, *, quantised: bool, drafts: bool = True, least: int = 0) -> CacheSpec:
    """Entries of ``head_dim`` channels: the value is also the key. ``drafts``: the draft stages have rings too."""
    layers = [
        CacheLayer(
            layer=layer,
            entries=ring_length(config, least),
            format="v41" if quantised else "f32",
            width=config.head_dim,
        )
        for layer in range(config.n_layers_total if drafts else config.num_hidden_layers)
    ]
    return CacheSpec(name=NAME, pool="swa", layers=layers)
