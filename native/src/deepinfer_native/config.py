"""Sizes and policy of a core (``spec/engine.md`` 2.1)."""

from __future__ import annotations

import operator
import os
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from attrs import field, fields, frozen

from deepinfer_contracts import EngineType, Level, Limits, ReplayMode
from deepinfer_native.errors import ConfigurationError
from deepinfer_native.library import check, ffi, lib

INPUTS = ("InputMetadata", "InputMetadataV41")
ROW_ORDERS = ("stable", "length_desc")
VERIFY_LENGTHS = ("fixed", "confidence")
REPLAY_MODES = tuple(mode.name.lower() for mode in ReplayMode)
TABLE_ALIGN = 64


def _ratios(values: Any) -> tuple[int, ...]:
    try:
        return tuple(sorted({operator.index(v) for v in values}))
    except TypeError as error:
        raise ConfigurationError(f"a ratio list {values!r} holds something else: {error}", field="ratios") from error


def _table(values: Any) -> npt.NDArray[np.int32] | None:
    if values is None:
        return None
    table = np.asarray(values)
    if table.size and (table.dtype.kind not in "iu" or int(table.max()) >= 2**31 or int(table.min()) < -(2**31)):
        raise ConfigurationError(f"has entries of {table.dtype} that are no 32-bit integers", field="ngram_table")
    return np.ascontiguousarray(table, dtype=np.int32).reshape(-1)


@frozen(kw_only=True, eq=False)
class CoreConfig:
    """Fixed for the life of a core. Raises ConfigurationError naming field, value and bound.

    Units: ``num_blocks`` blocks of ``block_size`` tokens, the null block included; ``num_swa_slots`` and
    ``num_state_slots`` slots with the null slot, 0 = the pool is off; ``max_chunk``, ``prefill_sum_k_limit`` and
    ``swa_ring`` tokens, 0 = derived; ``prefill_interval_*`` decode steps; ``ngram_table`` int32 ``[size]``, compressed
    id of each token id, negative for an image sentinel; ``ngram_pad`` a compressed id.

    ``csr_tables``: every step carries the block tables of its requests, and decode inputs ``block_tables``. False: only
    new entries (``bt_delta``); the backend keeps a table by row slot, and decode inputs carry ``row_slot_idx``. Then no
    part of a step depends on the length of contexts.
    ``target_itl_ns`` and ``prefill_step_ns`` nanoseconds, used once `Core.set_cost_model` was called (2.8): the time
    between two decode steps, and of a prefill step while nothing decodes; 0 = no bound. ``verify_lengths``: how many
    drafts a decode step verifies, all of them or as many as pay by their confidence (7; `Core.set_verify_curve`).
    ``dp_size`` ranks that step together and vote on the kind of each step.

    ``replay_mode``: what the decoder half runs of a prompt where a request does not say (3.7): all rows (``off``), all
    rows with windows cut in front of the last ``replay_keep`` ones (``mask``), or these alone (``compact``). A request
    may choose the mode of the core or one in front of it in that order. ``replay_keep``: >= ``window`` + ``backtrack``,
    0 with ``off``.
    ``prefix_cache``: requests reuse the blocks of an equal prefix; the last ``replay_len`` tokens of it run again
    (>= ``window``, 0 = ``window``), more if the decoder half keeps its last ``replay_keep`` rows. ``replay_exact``:
    replays are so long that the windows behind them are those of a cold run, ``replay_len`` positions where the decoder
    half runs all rows, else ``replay_len_kept`` (0 = ``replay_len``) in front of the first that it keeps.
    ``prefix_key``: 16 bytes of the keyed hash, None = drawn at creation. ``prefix_salt``: u64
    fingerprint of model and cache layout. ``prefix_hash_bits``: bits of a hash that count, fewer than 128 make hashes
    collide, which only tests want.
    """

    num_blocks: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    block_size: int = 128
    num_swa_slots: int = 0
    num_state_slots: int = 0
    max_num_seqs: int = 256
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
    engine_type: EngineType = EngineType.NORMAL
    window: int = 0
    backtrack: int = 1
    swa_ring: int = 0
    ratios_sparse: tuple[int, ...] = field(default=(), converter=_ratios)
    ratios_dense: tuple[int, ...] = field(default=(), converter=_ratios)
    ngram: int = 0
    ngram_table: npt.NDArray[np.int32] | None = field(default=None, converter=_table)
    ngram_pad: int = 0
    inputs: Literal["InputMetadata", "InputMetadataV41"] = "InputMetadata"
    validation: Literal["off", "boundary", "full"] = "boundary"
    stream_ordered_reuse: bool = False
    row_order: Literal["stable", "length_desc"] = "stable"
    zero_swa_on_alloc: bool = False
    csr_tables: bool = True
    target_itl_ns: int = 0
    prefill_step_ns: int = 0
    cost_feedback: bool = False
    verify_lengths: Literal["fixed", "confidence"] = "fixed"
    dp_size: int = 1
    prefix_cache: bool = False
    prefix_key: bytes | None = field(default=None, repr=False)
    prefix_salt: int = 0
    prefix_hash_bits: int = 128
    replay_len: int = 0
    replay_mode: Literal["off", "mask", "compact"] = "off"
    replay_keep: int = 0
    replay_exact: bool = False
    replay_len_kept: int = 0

    def __attrs_post_init__(self) -> None:
        from deepinfer_native.config_rules import check_config  # a cycle otherwise: the rules are written on this class

        check_config(self)

    @property
    def q(self) -> int:
        """Rows of a decode request: the token to extend and its drafts."""
        return self.num_draft + 1

    @property
    def max_pos(self) -> int:
        """Exclusive upper bound of positions."""
        return self.max_model_len + 2 * self.num_draft + (self.q if self.depth > 1 else 0)

    @property
    def max_blocks(self) -> int:
        """Width of a block-table row."""
        used = (self.max_pos + self.block_size - 1) // self.block_size
        return (used + TABLE_ALIGN - 1) // TABLE_ALIGN * TABLE_ALIGN

    @property
    def prompt_limit(self) -> int:
        """Longest prompt that can run."""
        return self.max_model_len if self.chunked_prefill else min(self.max_model_len, self.max_num_batched_tokens)

    @property
    def sum_k_limit(self) -> int:
        """Sum of full lengths in one prefill step."""
        return self.prefill_sum_k_limit or max(self.prompt_limit, self.max_num_batched_tokens)

    @property
    def ring(self) -> int:
        """Tokens of a sliding-window slot."""
        return self.swa_ring or (self.window + max(self.backtrack, self.q) if self.window else 0)

    @property
    def ratios(self) -> tuple[int, ...]:
        return tuple(sorted({*self.ratios_sparse, *self.ratios_dense}))

    def hit_replay(self, mode: str) -> int:
        """Positions of a prefix hit that a request of this replay mode runs again."""
        return (self.replay_len_kept if mode != "off" else 0) or self.replay_len or self.window

    @property
    def limits(self) -> Limits:
        """The dimensions that contract checks refer to."""
        return Limits(
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            num_swa_slots=self.num_swa_slots,
            num_state_slots=self.num_state_slots,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            num_draft=self.num_draft,
            max_pos=self.max_pos,
            vocab_size=self.vocab_size,
            window=self.window,
            swa_ring=self.ring,
            backtrack=max(self.backtrack, self.q),
            ratios=self.ratios,
            ratios_sparse=self.ratios_sparse,
            ratios_dense=self.ratios_dense,
            ngram=self.ngram,
            max_blocks=self.max_blocks,
            persistent_tables=1,
            csr_tables=int(self.csr_tables),
            replay_mode=REPLAY_MODES.index(self.replay_mode),
        )


def to_c(config: CoreConfig) -> tuple[Any, list[Any]]:
    """(``di_config *``, what must stay alive with it)."""
    out = ffi.new("di_config *")
    keep: list[Any] = [out]
    out.struct_size = ffi.sizeof("di_config")
    special = {"ratios_sparse", "ratios_dense", "ngram_table", "inputs", "validation", "row_order", "engine_type"}
    special |= {"prefix_key", "verify_lengths", "replay_mode"}
    for a in fields(CoreConfig):
        if a.name not in special:
            value = getattr(config, a.name)
            setattr(out, a.name, float(value) if a.name == "prefill_watermark" else int(value))
    for name in ("ratios_sparse", "ratios_dense"):
        values = getattr(config, name)
        setattr(out, f"num_{name}", len(values))
        for i, ratio in enumerate(values[:4]):
            getattr(out, name)[i] = ratio
    out.inputs = INPUTS.index(config.inputs)
    out.validation = int(Level[config.validation.upper()])
    out.row_order = ROW_ORDERS.index(config.row_order)
    out.verify_lengths = VERIFY_LENGTHS.index(config.verify_lengths)
    out.replay_mode = REPLAY_MODES.index(config.replay_mode)
    out.engine_type = int(config.engine_type)
    ffi.memmove(out.prefix_key, os.urandom(16) if config.prefix_key is None else config.prefix_key, 16)
    if config.ngram_table is not None:
        table = ffi.from_buffer("int32_t[]", config.ngram_table)
        keep.append(table)
        out.ngram_table, out.ngram_table_size = table, len(config.ngram_table)
    return out, keep


def derive(config: CoreConfig) -> Any:
    """What the library derives from the same configuration (``di_derived``); raises its ConfigurationError."""
    out, _keep = to_c(config)
    derived = ffi.new("di_derived *")
    check(lib.di_config_check(out, derived))
    return derived
