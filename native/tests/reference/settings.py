"""Sizes and policy (``spec/engine.md`` 2.1), as far as a decision depends on them."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Settings:
    """Names and meanings are those of the core's configuration. Tokens, blocks, slots; the null unit counts."""

    num_blocks: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int = 128
    num_swa_slots: int = 0
    num_state_slots: int = 0
    max_num_seqs: int = 256
    vocab_size: int = 0
    max_chunk: int = 0
    min_chunk: int = 1
    chunk_align: int = 128
    chunked_prefill: bool = True
    num_draft: int = 0
    depth: int = 1
    prefill_interval_all: int = 70
    prefill_interval_any: int = 100
    prefill_watermark: float = 0.9
    prefill_sum_k_limit: int = 0
    max_prefill_burst: int = 0
    stop_preempted: bool = False
    stream_ordered_reuse: bool = False
    row_order: str = "stable"
    zero_swa_on_alloc: bool = False
    dp_size: int = 0
    engine_type: int = 0
    verify_lengths: str = "fixed"
    window: int = 0
    backtrack: int = 1
    swa_ring: int = 0
    ratios_sparse: tuple = ()
    ratios_dense: tuple = ()
    prefix_cache: bool = False
    replay_len: int = 0
    replay_mode: str = "off"
    replay_keep: int = 0
    replay_exact: bool = False
    replay_len_kept: int = 0

    @classmethod
    def of(cls, config) -> Settings:
        """From any object with these attributes; a missing one has its default."""
        return cls(**{f.name: getattr(config, f.name) for f in fields(cls) if hasattr(config, f.name)})

    @property
    def q(self) -> int:
        """Rows of a decode request: the token to extend and its drafts."""
        return self.num_draft + 1

    @property
    def max_pos(self) -> int:
        """Exclusive bound of positions: the reserve of one step, of one in flight, and of the drafter behind it."""
        in_flight = self.q if self.depth > 1 else 0
        return self.max_model_len + self.num_draft + in_flight + self.num_draft

    @property
    def prompt_limit(self) -> int:
        return self.max_model_len if self.chunked_prefill else min(self.max_model_len, self.max_num_batched_tokens)

    @property
    def sum_k_limit(self) -> int:
        return self.prefill_sum_k_limit or max(self.prompt_limit, self.max_num_batched_tokens)

    @property
    def chunk_limit(self) -> int:
        return self.max_chunk or self.max_num_batched_tokens

    @property
    def ratios(self) -> list[int]:
        return sorted({*self.ratios_sparse, *self.ratios_dense})

    @property
    def state_backtrack(self) -> int:
        return max(self.backtrack, self.q)

    @property
    def ring(self) -> int:
        """Positions that a sliding-window slot keeps."""
        return self.swa_ring or self.window + self.state_backtrack

    @property
    def event_capacity(self) -> int:
        """Events of one batch: every token of a step, and room for ends outside it."""
        return self.max_num_seqs * (self.q + 1) + 64

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
