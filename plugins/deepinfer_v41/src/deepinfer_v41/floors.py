"""The least that each op of a step must move and compute, at the sizes of a configuration (``spec/kernels.md`` 2.10).

Bytes are read once and written once, weights as they are stored; FLOP count on bf16 products, whatever the format.
Activations between ops are counted where ops hand them over, as the released model cuts it into ops.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from deepinfer_core.types import OpFloor
from deepinfer_v41.config import V41Config
from deepinfer_v41.layer_plan import LayerKind, LayerPlan

FP8 = 1 + 1 / 1024
"""Bytes of a weight with a scale for 32 x 32."""
FP4 = 0.5 + 1 / 32
BF16 = 2
CAST = 1 + 1 / 32
"""Bytes of an activation in FP8 with a scale for 32."""
WINDOW_ENTRY, MAIN_ENTRY, INDEX_ENTRY = 528, 288, 68


@frozen
class Work:
    """``context``: tokens before and including a row's own; in ``prefill`` rows are the positions from ``first`` on."""

    rows: int
    context: int
    prefill: bool = False
    first: int = 0

    def pairs(self, limit: int, ratio: int = 1) -> float:
        """Keys that all rows together attend to, each at most ``limit`` of those that stand for ``ratio`` tokens."""
        if not self.prefill:
            return float(self.rows * min(self.context // ratio, limit))
        return _pairs_of(self.first + self.rows, limit, ratio) - _pairs_of(self.first, limit, ratio)

    def last(self, rows: int) -> Work:
        """The last ``rows`` of a prefill step; 0: all of them."""
        left_out = self.rows - rows if self.prefill and 0 < rows < self.rows else 0
        return Work(self.rows - left_out, self.context, self.prefill, self.first + left_out)


def _pairs_of(rows: int, limit: int, ratio: int) -> float:
    """Of the positions 0 to rows - 1."""
    full = min(rows, limit * ratio)
    return full * full / 2 / ratio + (rows - full) * limit


def step_floors(c: V41Config, work: Work, kept: int = 0) -> list[OpFloor]:
    """Of a whole step without the draft head: embedding, layers, and the head over the rows that are sampled.

    :param kept: Rows of a prompt that the decoder half runs (bounded replay, ``spec/model.md`` 5); 0: all.
    """
    rows, sampled = work.rows, 1 if work.prefill else work.rows
    layers: list[OpFloor] = []
    for plan in c.layers:
        if not plan.is_draft:
            own = work if plan.layer < c.n_encoder_layers else work.last(kept)
            layers += floors(c, plan, own, entries_of=work)
    embedding = OpFloor("embedding", rows * c.hidden_size * BF16 * (1 + c.hc_mult))
    return [embedding, *layers, _product("head", sampled, c.hidden_size, c.vocab_size, BF16, BF16)]


def floors(c: V41Config, plan: LayerPlan, work: Work, entries_of: Work | None = None) -> list[OpFloor]:
    """One entry for each op of the layer.

    :param entries_of: The rows whose entries the layer stores, where they are more than it runs.
    """
    return [*_streams(c, work), *_attention(c, plan, work), *_entries(c, plan, entries_of or work),
            *_queries(c, plan, work), *_experts(c, work),
            *(_engram(c, work) if plan.engram is not None else ())]  # fmt: skip


def _product(name: str, rows: int, n_in: int, n_out: int, weight: float, read: float = CAST) -> OpFloor:
    return OpFloor(name, n_in * n_out * weight + rows * (n_in * read + n_out * BF16), 2.0 * rows * n_in * n_out)


def _streams(c: V41Config, work: Work) -> Iterator[OpFloor]:
    t, d, streams = work.rows, c.hidden_size, c.hc_mult
    for part in ("attn", "ffn"):
        yield OpFloor(f"mhc.pre {part}", t * d * BF16 * (streams + 1), 2.0 * t * streams * d * streams * (streams + 2))
        yield OpFloor(f"norm.rms {part}", t * d * (2 * BF16 + CAST))
        yield OpFloor(f"mhc.post {part}", t * d * BF16 * (2 * streams + 1))


def _attention(c: V41Config, plan: LayerPlan, work: Work) -> Iterator[OpFloor]:
    t, d, width, heads = work.rows, c.hidden_size, c.head_dim, c.num_attention_heads * c.head_dim
    index = c.index_n_heads * c.index_head_dim if plan.has_indexer else 0
    yield _product("q_a + kv", t, d, c.q_lora_rank + width, FP8)
    yield OpFloor("q norm", t * c.q_lora_rank * (2 * BF16 + CAST))
    yield _product("q_b", t, c.q_lora_rank, heads + index, FP8)
    yield OpFloor("rope q", 2 * t * heads * BF16)
    yield OpFloor("store window", t * (width * BF16 + WINDOW_ENTRY))
    window, chosen = work.pairs(c.sliding_window), 0.0
    if plan.kv_source is not None:
        chosen = work.pairs(c.index_topk, plan.ratio)
    keys = window * WINDOW_ENTRY + chosen * MAIN_ENTRY
    if work.prefill:  # a key is read once: its readers share it
        before = min(work.first, c.sliding_window)
        keys = (before + t + ((work.first + t) / plan.ratio if plan.kv_source is not None else 0)) * width * BF16
    yield OpFloor("attention", keys + 2 * t * heads * BF16, 4.0 * heads * (window + chosen))
    yield OpFloor("rope out", 2 * t * heads * BF16)
    rank = c.o_groups * c.o_lora_rank
    yield OpFloor("wo_a", heads * c.o_lora_rank * FP8 + t * (heads + rank) * BF16, 2.0 * t * heads * c.o_lora_rank)
    yield OpFloor("cast", t * rank * (BF16 + CAST))
    yield _product("wo_b", t, rank, d, FP8)


def _entries(c: V41Config, plan: LayerPlan, work: Work) -> Iterator[OpFloor]:
    t, d, width = work.rows, c.hidden_size, c.head_dim
    if plan.kind is LayerKind.FULL:
        parts = 2 if plan.ratio > 1 else 1
        yield _product("compressor", t, d, parts * width, BF16, BF16)
        yield OpFloor("store entries", t / plan.ratio * (2 * width * BF16 + MAIN_ENTRY + INDEX_ENTRY))
        yield _product("index key", max(1, t // plan.ratio), width, c.index_head_dim, BF16, BF16)


def _queries(c: V41Config, plan: LayerPlan, work: Work) -> Iterator[OpFloor]:
    t, d = work.rows, c.hidden_size
    if plan.has_indexer:
        limit = c.candidate_topk_blocks * c.candidate_block_size if plan.candidate_source is not None else 1 << 40
        scored = work.pairs(limit, plan.ratio)
        keys = (work.first + t) / plan.ratio if work.prefill else scored
        yield _product("index weights", t, d, c.index_n_heads, BF16, BF16)
        yield OpFloor(
            "index.logits", keys * INDEX_ENTRY + scored * 4, 2.0 * c.index_n_heads * c.index_head_dim * scored
        )
        yield OpFloor("index.topk", scored * 4 + t * c.index_topk * 4)


def _experts(c: V41Config, work: Work) -> Iterator[OpFloor]:
    t, d, inner, k, count = (
        work.rows,
        c.hidden_size,
        c.moe_intermediate_size,
        c.num_experts_per_tok,
        c.n_routed_experts,
    )
    touched = count * (1 - (1 - k / count) ** t)
    yield _product("gate", t, d, count, BF16, BF16)
    yield OpFloor("experts", touched * 3 * d * inner * FP4 + t * k * (d * CAST + d * BF16), 6.0 * t * k * d * inner)
    yield OpFloor("shared expert", 3 * d * inner * FP8 + t * d * (CAST + BF16), 6.0 * t * d * inner)
    yield OpFloor("combine", t * (k + 2) * d * BF16)


def _engram(c: V41Config, work: Work) -> Iterator[OpFloor]:
    t, d, streams = work.rows, c.hidden_size, c.hc_mult
    columns = c.engram_columns * c.engram_head_dim
    yield OpFloor("engram rows", t * columns * (CAST + CAST))
    yield _product("engram wkv", t, columns, (streams + 1) * d, FP8)
    yield OpFloor("engram gate", t * d * BF16 * (3 * streams + 1))
