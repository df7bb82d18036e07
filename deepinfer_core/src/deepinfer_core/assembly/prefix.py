"""The prefix cache as the engine sets it up: what a cached block depends on, and whether one can ever be found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from attrs import frozen

from deepinfer_core.assembly.bounded_replay import BoundedReplay
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError, EngineError, NotSupported
from deepinfer_core.types import CacheSpec, ModelCard, SchedulerHints

EDGE_BYTES = 1 << 16
"""Bytes at both ends of a file that stand for its content, beside its name and size."""


@frozen
class PrefixCacheReport:
    """What the prefix cache of an engine did so far, in tokens and blocks."""

    queries: int
    """Prompts that were looked up, also again after a preemption."""
    saved_tokens: int
    """Not computed because an equal beginning was there."""
    replayed_tokens: int
    """Of those beginnings, run again to rebuild the sliding windows."""
    evicted_blocks: int
    """Given up to make room."""

    @classmethod
    def of(cls, stats: Any) -> Self:
        """From ``Core.stats()``."""
        return cls(stats.prefix_queries, stats.prefix_hit_tokens, stats.prefix_replayed_tokens, stats.prefix_evictions)

    def __str__(self) -> str:
        return (
            f"prefix cache: {self.queries} look-ups, {self.saved_tokens} tokens saved, "
            f"{self.replayed_tokens} run again, {self.evicted_blocks} blocks evicted"
        )


def fingerprint(
    card: ModelCard, specs: Sequence[CacheSpec], config: EngineConfig, block_size: int, backend: str
) -> int:
    """64 bits that differ where the cache of one engine means nothing to another.

    They cover the model's configuration and files, the layout of the caches, the backend and the numeric mode.
    """
    digest = hashlib.blake2b(digest_size=8)

    def add(*values: object) -> None:
        digest.update(json.dumps(values, sort_keys=True, default=str).encode())

    add("model", card.architecture, dict(card.config))
    for name, size, edges in _files(card.path):
        add("file", name, size, edges)
    for spec in specs:
        layers = [(layer.layer, layer.entries, layer.format, layer.width, layer.ratio) for layer in spec.layers]
        add("cache", spec.name, spec.pool, layers)
    add("engine", block_size, backend, config.numeric_mode, config.cache_formats)
    return int.from_bytes(digest.digest(), "little")


def check_prefix_cache(
    hints: SchedulerHints, replay: BoundedReplay, *, block_size: int, num_blocks: int, max_model_len: int
) -> None:
    """Raise NotSupported for a model that cannot go on at a reused prefix, ConfigError where no prompt can ever hit.

    A hit is a whole number of blocks, its last positions run again, and one token must be left to run.
    """
    if not hints.prefix_replay:
        raise NotSupported(
            "prefix_cache is on, but the model cannot go on at a reused prefix",
            reason="its plugin gives no hint prefix_replay: what it keeps outside cache blocks would be missing",
            remedy="leave --prefix-cache out",
            details={"field": "prefix_cache"},
        )
    again = replay.hit_length
    needed = max((again // block_size + 1) * block_size, replay.least_before_kept) + 1
    longest = min((num_blocks - 1) * block_size, max_model_len - 1)
    if needed <= longest:
        return
    what = f"a window of {again}" if again == hints.window else f"{again} positions that run again"
    raise ConfigError(
        "prefix_cache is on, but no prompt can ever hit",
        reason=f"with blocks of {block_size} tokens and {what} the shortest prompt that saves "
        f"anything has {needed} tokens, and the longest that runs has {longest}",
        remedy="lower --block-size, raise --kv-memory or --max-model-len, or leave --prefix-cache out",
        details={"block_size": block_size, "window": hints.window, "needed": needed, "longest": longest},
    )


def reset_prefixes(core: Any) -> None:
    """Forget every cached prefix of ``core``. Raises ConfigError if it keeps none, EngineError while requests share
    blocks."""
    from deepinfer_native.errors import BusyError  # the core exists, so its package does

    if not core.config.prefix_cache:
        raise ConfigError(
            "prefix_cache is off, so there is nothing to reset", remedy="make the LLM with prefix_cache=True"
        )
    try:
        core.reset_prefix_cache()
    except BusyError as err:
        raise EngineError(
            "the prefix cache cannot be reset now", reason=str(err), remedy="try again when requests have ended"
        ) from err


def _files(folder: Path) -> list[tuple[str, int, str]]:
    """Name, size and a hash of both ends of each file of a model directory."""
    if not folder.is_dir():
        return []
    found = []
    for path in sorted(folder.iterdir()):
        if not path.is_file():
            continue
        size = path.stat().st_size
        with path.open("rb") as stream:
            edges = stream.read(EDGE_BYTES)
            if size > EDGE_BYTES:
                stream.seek(max(EDGE_BYTES, size - EDGE_BYTES))
                edges += stream.read(EDGE_BYTES)
        found.append((path.name, size, hashlib.blake2b(edges, digest_size=16).hexdigest()))
    return found
