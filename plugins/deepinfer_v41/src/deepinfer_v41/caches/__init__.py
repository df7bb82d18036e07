"""The four cache types of DeepSeek-V4.1, one module each (``spec/model.md`` 4).

Each module states what an entry holds, which layers own one, and in which format; the backend turns the specs into
memory. ``cache_specs`` is what the plugin gives to the core.
"""

from __future__ import annotations

from deepinfer_core.types import CacheSpec
from deepinfer_v41.caches import compressor_state, index_k, main_kv, swa_ring
from deepinfer_v41.config import V41Config

__all__ = ["cache_specs"]


def cache_specs(config: V41Config, *, quantised: bool = True, block_size: int = 128) -> list[CacheSpec]:
    """Main KV, index keys, window rings and compressor rings of ``config``.

    :param quantised: The released formats; False keeps FP32 entries (numeric mode ``exact``, formats off).
    :param block_size: Tokens a block of the two paged caches covers; a multiple of every ratio.
    """
    return [
        main_kv.spec(config, quantised=quantised, block_size=block_size),
        index_k.spec(config, quantised=quantised, block_size=block_size),
        swa_ring.spec(config, quantised=quantised),
        compressor_state.spec(config),
    ]
