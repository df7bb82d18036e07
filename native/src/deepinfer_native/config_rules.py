"""The rules of ``spec/engine.md`` 2.1 in Python; the library checks the same ones (``src/di_config.c``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer_contracts import EngineType, Level, ReplayMode
from deepinfer_native.errors import ConfigurationError

if TYPE_CHECKING:
    from deepinfer_native.config import CoreConfig

MAX_RATIOS = 4
MAX_INT = 2**31

# field, smallest, largest
RANGES: tuple[tuple[str, int, int], ...] = (
    ("block_size", 1, 1 << 16),
    ("num_blocks", 2, MAX_INT - 1),
    ("max_num_seqs", 1, 65535),
    ("max_model_len", 1, 1 << 28),
    ("vocab_size", 1, MAX_INT - 1),
    ("num_draft", 0, 15),
    ("depth", 1, 2),
    ("max_num_batched_tokens", 1, 1 << 28),
    ("min_chunk", 1, MAX_INT - 1),
    ("chunk_align", 1, MAX_INT - 1),
    ("max_chunk", 0, MAX_INT - 1),
    ("prefill_interval_all", 1, MAX_INT - 1),
    ("prefill_interval_any", 1, MAX_INT - 1),
    ("prefill_sum_k_limit", 0, 1 << 30),
    ("max_prefill_burst", 0, MAX_INT - 1),
    ("window", 0, 1 << 28),
    ("swa_ring", 0, 1 << 28),
    ("backtrack", 1, 1 << 28),
    ("ngram", 0, 16),
    ("ngram_pad", 0, MAX_INT - 1),
    ("target_itl_ns", 0, 1 << 50),
    ("prefill_step_ns", 0, 1 << 50),
    ("dp_size", 1, 65535),
    ("replay_len", 0, 1 << 28),
    ("replay_keep", 0, 1 << 28),
    ("replay_len_kept", 0, 1 << 28),
    ("prefix_hash_bits", 0, 128),
    ("prefix_salt", 0, 2**64 - 1),
)

FLAGS = (
    "chunked_prefill",
    "stop_preempted",
    "stream_ordered_reuse",
    "zero_swa_on_alloc",
    "csr_tables",
    "cost_feedback",
    "prefix_cache",
    "replay_exact",
)


def check_config(c: CoreConfig) -> None:
    """Raises ConfigurationError naming field, value and bound."""
    for name, low, high in RANGES:
        value = getattr(c, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _outside(name, value, f"{low} .. {high}")
    _check_choices(c)
    _check_ratios("ratios_sparse", c.ratios_sparse, c.block_size)
    _check_ratios("ratios_dense", c.ratios_dense, c.block_size)
    if len(c.ratios) > MAX_RATIOS:
        raise _outside("ratios_dense", c.ratios_dense, "at most 4 different ratios")
    _check_relations(c)
    _check_prefix(c)
    _check_products(c)


def _outside(name: str, value: Any, bound: str) -> ConfigurationError:
    return ConfigurationError(f"is {value}, the bound is {bound}", field=name)


def _check_choices(c: CoreConfig) -> None:
    for name in ("num_swa_slots", "num_state_slots"):
        value = getattr(c, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value == 1 or value >= MAX_INT:
            raise _outside(name, value, "0, or >= 2 (slot 0 is the null slot)")
    if not isinstance(c.prefill_watermark, (int, float)) or not 0 < c.prefill_watermark <= 1:
        raise _outside("prefill_watermark", c.prefill_watermark, "(0, 1]")
    if c.engine_type not in list(EngineType):
        raise _outside("engine_type", c.engine_type, "0 (NORMAL), 1 (PROMPT) or 2 (COMPLETION)")
    if c.engine_type == EngineType.COMPLETION and not c.stop_preempted:
        bound = "1 with engine_type 2 (COMPLETION): it cannot compute a preempted request again"
        raise _outside("stop_preempted", int(c.stop_preempted), bound)
    for name, choices in (
        ("inputs", ("InputMetadata", "InputMetadataV41")),
        ("row_order", ("stable", "length_desc")),
        ("verify_lengths", ("fixed", "confidence")),
        ("replay_mode", tuple(mode.name.lower() for mode in ReplayMode)),
        ("validation", tuple(level.name.lower() for level in Level)),
    ):
        if getattr(c, name) not in choices:
            raise _outside(name, getattr(c, name), "one of " + ", ".join(choices))
    for name in FLAGS:
        if getattr(c, name) not in (False, True):
            raise _outside(name, getattr(c, name), "0 or 1")


def _check_ratios(name: str, ratios: tuple[int, ...], block_size: int) -> None:
    if len(ratios) > MAX_RATIOS:
        raise _outside(name, len(ratios), "at most 4 ratios")
    for ratio in ratios:
        if ratio < 1 or block_size % ratio:
            raise _outside(name, ratio, f"a divisor of block_size = {block_size}")


def _check_relations(c: CoreConfig) -> None:
    rows = c.max_num_seqs * c.q
    tokens = c.max_num_batched_tokens
    if tokens < c.block_size:
        raise _outside("max_num_batched_tokens", tokens, f">= block_size = {c.block_size}")
    if tokens < rows:
        raise _outside("max_num_batched_tokens", tokens, f">= max_num_seqs * (num_draft + 1) = {rows}")
    if not c.chunked_prefill and tokens < c.max_model_len:
        raise _outside(
            "max_num_batched_tokens", tokens, f">= max_model_len without chunked_prefill = {c.max_model_len}"
        )
    max_chunk = c.max_chunk or tokens
    if not c.chunked_prefill and max_chunk < c.prompt_limit:
        raise _outside("max_chunk", max_chunk, f">= max_model_len without chunked_prefill = {c.prompt_limit}")
    if max_chunk < c.min_chunk:
        raise _outside("max_chunk", max_chunk, f">= min_chunk = {c.min_chunk}")
    if max_chunk > tokens:
        raise _outside("max_chunk", max_chunk, f"<= max_num_batched_tokens = {tokens}")
    if c.sum_k_limit < c.prompt_limit:
        raise _outside("prefill_sum_k_limit", c.sum_k_limit, f">= prompt_limit = {c.prompt_limit}")
    if c.window and c.num_swa_slots < 2:
        raise _outside("num_swa_slots", c.num_swa_slots, ">= 2 with a window")
    if c.window and c.ring < c.window + c.q:
        raise _outside("swa_ring", c.ring, f">= window + num_draft + 1 = {c.window + c.q}")
    if c.ngram and (c.ngram_table is None or not len(c.ngram_table)):
        raise _outside("ngram_table", 0, "at least 1 entry with ngram > 0")


def _check_prefix(c: CoreConfig) -> None:
    if c.prefix_key is not None and (not isinstance(c.prefix_key, bytes) or len(c.prefix_key) != 16):
        raise ConfigurationError("is not None and not 16 bytes", field="prefix_key")
    if c.replay_len and c.replay_len < c.window:
        raise _outside("replay_len", c.replay_len, f"0, or >= window = {c.window}")
    if c.replay_len_kept and c.replay_len_kept < c.window:
        raise _outside("replay_len_kept", c.replay_len_kept, f"0, or >= window = {c.window}")
    backtrack = max(c.backtrack, c.q)
    if c.replay_mode == "off" and c.replay_keep:
        raise _outside("replay_keep", c.replay_keep, "0 with replay_mode 0 (off)")
    if c.replay_mode != "off" and not c.window:
        raise _outside("replay_mode", c.replay_mode, "0 (off) without a window")
    if c.replay_mode != "off" and c.replay_keep < c.window + backtrack:
        raise _outside("replay_keep", c.replay_keep, f">= window + backtrack = {c.window + backtrack}")
    if not c.prefix_cache:
        return
    # Whole blocks that leave something to skip in front of the replay, and one token to run behind.
    replay = c.hit_replay(c.replay_mode)
    kept = c.replay_keep + (replay if c.replay_keep and c.replay_exact else 0)
    shortest = max((replay // c.block_size + 1) * c.block_size, kept) + 1
    longest = min((c.num_blocks - 1) * c.block_size, c.prompt_limit)
    if shortest > longest:
        raise ConfigurationError(
            f"is 1, but no prompt can ever hit: with block_size {c.block_size}, replay_len {replay} and replay_keep "
            f"{c.replay_keep} a hit needs {shortest} tokens, the longest prompt has {longest}",
            field="prefix_cache",
        )


def _check_products(c: CoreConfig) -> None:
    """Sizes that are counted in 32 bits."""
    rows = c.max_num_seqs * c.q * c.max_blocks * c.block_size
    if c.ratios_dense and rows >= MAX_INT - 1:
        raise _outside("max_num_seqs", c.max_num_seqs, f"rows * max_blocks * block_size < 2**31, here = {rows}")
    if c.num_swa_slots * max(c.ring, 1) >= MAX_INT:
        raise _outside("num_swa_slots", c.num_swa_slots, "num_swa_slots * swa_ring < 2**31")
    if c.num_blocks * c.block_size >= MAX_INT:
        raise _outside("num_blocks", c.num_blocks, "num_blocks * block_size < 2**31")
    if c.max_num_seqs * max(c.window, 1) + c.max_num_batched_tokens >= MAX_INT:
        raise _outside("max_num_seqs", c.max_num_seqs, "max_num_seqs * window + max_num_batched_tokens < 2**31")
