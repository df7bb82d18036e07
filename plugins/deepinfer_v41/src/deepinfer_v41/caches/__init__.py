"""The four cache types of DeepSeek-V4.1, one module each (``spec/model.md`` 4), and the draft head's block.

Each module states what an entry holds, which layers own one, and in which format; the backend turns the specs into
memory. ``cache_specs`` is what the plugin gives to the core.
"""

from __future__ import annotations

from deepinfer_core.types import CacheSpec
from deepinfer_v41.caches import compressor_state, draft_block, index_k, main_kv, swa_ring
from deepinfer_v41.config import V41Config

__all__ = ["cache_specs"]


def cache_specs(
    config: V41Config, *, quantised: bool = True, block_size: int = 128, drafts: bool = True, backtrack: int = 0
) -> list[CacheSpec]:
    """Main KV, index keys, window rings and compressor rings of ``config``; with ``drafts`` those of the draft head.

    :param quantised: The released formats; False keeps FP32 entries (numeric mode ``exact``, formats off).
    :param block_size: Tokens a block of the two paged caches covers; a multiple of every ratio.
    :param backtrack: Positions that can be rolled back at least; a full block of drafts can be always.
    """
    drafts = drafts and config.max_draft_tokens > 0
    specs = [
        main_kv.spec(config, quantised=quantised, block_size=block_size),
        index_k.spec(config, quantised=quantised, block_size=block_size),
        swa_ring.spec(config, quantised=quantised, drafts=drafts, least=backtrack),
        compressor_state.spec(config, least=backtrack),
    ]
    return [*specs, draft_block.spec(config, quantised=quantised)] if drafts else specs
