"""Operations of a V4.1 prefill by the formula of ``spec/engine.md`` 2.8, from a configuration alone."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open

from deepinfer_native import AttentionKind, CostModel
from deepinfer_v41.config import V41Config
from deepinfer_v41.layer_plan import LayerPlan


def cost_model(config: V41Config, path: Path, keep: int) -> CostModel:
    """Multiply-adds count as 2. ``keep``: rows of a prompt that the decoder half runs; 0: all.

    Rows of the encoder half and the global keys of the decoder's first layer are of every row, the rest of kept ones.
    """
    start = config.n_encoder_layers
    rows = sum(linear(config, plan, path) for plan in config.layers[:start])
    first = config.layers[start]
    rows += mixing(config) / 2 + compressor(config, first)
    kept = sum(linear(config, plan, path) for plan in config.layers[start : config.num_hidden_layers])
    kept -= mixing(config) / 2 + compressor(config, first)
    kinds = [kind for is_kept in (False, True) for kind in attention(config, start, is_kept)]
    return CostModel(row_flops=rows, kept_flops=kept, attention=kinds, keep=keep)


def linear(c: V41Config, plan: LayerPlan, path: Path) -> float:
    """Operations of one row in one layer that do not depend on what it attends to."""
    heads = c.num_attention_heads * c.head_dim
    total = c.hidden_size * (c.q_lora_rank + c.head_dim) + c.q_lora_rank * heads
    total += heads * c.o_lora_rank + c.o_groups * c.o_lora_rank * c.hidden_size
    if plan.has_indexer:
        total += c.q_lora_rank * c.index_n_heads * c.index_head_dim + c.hidden_size * c.index_n_heads
    total += c.hidden_size * c.n_routed_experts
    total += 3 * c.hidden_size * c.moe_intermediate_size * (c.num_experts_per_tok + 1)
    if plan.engram is not None:
        with safe_open(path / "model.safetensors", "pt") as file:
            wide, narrow = file.get_slice(f"{plan.prefix}.engram.wkv.weight").get_shape()
        total += wide * narrow
    joins = 2 * c.hc_mult * c.hc_mult * c.hidden_size
    return 2 * (total + joins) + mixing(c) + compressor(c, plan)


def mixing(c: V41Config) -> float:
    """The mixes of the streams around both sublayers."""
    return 2 * 2 * c.hc_mult * c.hidden_size * (2 * c.hc_mult + c.hc_mult**2)


def compressor(c: V41Config, plan: LayerPlan) -> float:
    if not plan.has_compressor:
        return 0.0
    stems = 1 if plan.ratio == 1 else 2
    return 2 * (c.hidden_size * c.head_dim * stems + c.head_dim * c.index_head_dim / plan.ratio)


def attention(c: V41Config, start: int, is_kept: bool) -> list[AttentionKind]:
    """Windows, selected entries and index scores of the layers of one half."""
    plans = c.layers[start : c.num_hidden_layers] if is_kept else c.layers[:start]
    pair = 4.0 * c.num_attention_heads * c.head_dim
    out = [AttentionKind(1, c.sliding_window, True, pair_flops=pair * len(plans), kept=is_kept)]
    for ratio in sorted({plan.ratio for plan in plans if plan.ratio}):
        of_ratio = [plan for plan in plans if plan.ratio == ratio]
        out.append(AttentionKind(ratio, c.index_topk, pair_flops=pair * len(of_ratio), kept=is_kept))
        scored = sum(plan.has_indexer for plan in of_ratio)
        flops = 2.0 * c.index_n_heads * c.index_head_dim * scored
        out.append(AttentionKind(ratio, pair_flops=flops, kept=is_kept))
    return out
