"""The prefix cache (``spec/engine.md`` 2.10, 3.5) without hashes: a tree of blocks, known by parent and tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from reference.records import Refused

ROOT = 0


@dataclass
class Hit:
    """Blocks to share, and the first position to run; no blocks = no hit."""

    blocks: list[int] = field(default_factory=list)
    start: int = 0


@dataclass
class Node:
    """A registered block. A life is never used again, so a child whose parent was evicted is not found any more."""

    life: int
    parent_life: int
    parent: int
    tokens: tuple


class PrefixCache:
    def __init__(self, settings, pool):
        self.settings = settings
        self.pool = pool
        pool.on_evict = self.forget
        self.nodes: dict[int, Node] = {}
        self.by_key: dict[tuple, int] = {}  # (life of the parent, tokens) -> block
        self.lives = 0
        self.epoch = 1
        self.count: Counter[str] = Counter()

    @property
    def is_on(self) -> bool:
        return self.settings.prefix_cache

    def forget(self, block: int) -> None:
        node = self.nodes.pop(block)
        del self.by_key[node.parent_life, node.tokens]

    def block_tokens(self, s, at: int) -> tuple:
        size = self.settings.block_size
        return tuple(s.tokens[at * size : (at + 1) * size])

    def match(self, s) -> Hit:
        """Full blocks of an equal prefix that leave a token to run, if they save more than their replay."""
        c, hit, life = self.settings, Hit(), ROOT
        if not self.is_on or not s.prefix_lookup:
            return hit
        for at in range((s.len - 1) // c.block_size):
            block = self.by_key.get((life, self.block_tokens(s, at)))
            if block is None:
                break
            hit.blocks.append(block)
            life = self.nodes[block].life
        hit.start = self.start_of(s, len(hit.blocks) * c.block_size)
        return hit if hit.start > 0 else Hit()

    def start_of(self, s, end: int) -> int:
        """First position to run behind a hit of ``end`` tokens: windows are rebuilt, and kept rows computed."""
        c = self.settings
        replay = c.replay_len or c.window
        if s.replay_mode == "off":
            return end - replay
        replay = c.replay_len_kept or replay
        if c.replay_exact:
            return min(end, s.keep_from) - replay
        return min(end - replay, s.len - c.replay_keep)

    def idle(self, hit: Hit) -> int:
        """Blocks of the hit that could be taken by others: holding them leaves so many fewer."""
        return sum(b in self.pool.cached for b in hit.blocks)

    def hold(self, s, hit: Hit) -> None:
        """Pin the blocks of a hit, before others are taken and could evict them."""
        for block in hit.blocks:
            self.pool.share(block)
        s.blocks = list(hit.blocks)
        s.store_from = len(hit.blocks) * self.settings.block_size
        s.swa_valid_start = s.cached = hit.start
        if not self.is_on:
            return
        s.chain_epoch = self.epoch
        s.chain = [(b, self.nodes[b].life) for b in hit.blocks]
        s.has_twins = False
        self.count["queries"] += s.prefix_lookup
        self.count["hit_tokens"] += hit.start
        self.count["replayed_tokens"] += s.store_from - hit.start

    def is_whole(self, chain: list) -> bool:
        return all(b in self.nodes and self.nodes[b].life == life for b, life in chain)

    def offer(self, s) -> None:
        """Register full blocks of committed, computed positions. The first block with equal tokens stays."""
        size = self.settings.block_size
        if not self.is_on or s.chain_epoch != self.epoch or s.cached < (len(s.chain) + 1) * size:
            return
        if s.has_twins and not self.is_whole(s.chain):
            s.chain, s.has_twins = [], False  # again, on its own blocks
        while (len(s.chain) + 1) * size <= s.cached:
            at = len(s.chain)
            own, tokens = s.blocks[at], self.block_tokens(s, at)
            parent, life = s.chain[-1] if s.chain else (0, ROOT)
            block = self.by_key.get((life, tokens))
            if block is None:
                if own in self.nodes:
                    self.forget(own)
                self.lives += 1
                self.nodes[own] = Node(self.lives, life, parent, tokens)
                self.by_key[life, tokens] = block = own
                self.pool.registered.add(own)
            s.has_twins |= block != own
            s.chain.append((block, self.nodes[block].life))

    def withdraw(self, s) -> None:
        """The device reported the request as bad: offer none of what it computed itself."""
        if not self.is_on:
            return
        for block in s.blocks[s.store_from // self.settings.block_size :]:
            if block in self.nodes:
                self.forget(block)
                self.pool.unregister(block)
        s.chain_epoch = 0

    def reset(self) -> None:
        """Forget everything; refused while a block has more than one holder."""
        if not self.is_on:
            raise Refused("config", "there is no prefix cache")
        if any(n > 1 for n in self.pool.ref.values()):
            raise Refused("busy", "a block has more than one holder")
        for block in sorted(self.nodes):
            self.pool.unregister(block)
        self.nodes.clear()
        self.by_key.clear()
        self.epoch += 1
