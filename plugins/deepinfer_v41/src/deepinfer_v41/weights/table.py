"""Every tensor of a checkpoint: name, storage, shape and role, from the configuration alone (spec/model.md 3).

One declarative function. ``x8`` is a matrix in FP8 with one E8M0 scale per 32x32 block, ``x4`` an expert matrix in
MXFP4 (two codes a byte, low nibble the even column) with one scale per row and 32 columns. Without quantisation both
are one BF16, F16 or F32 ``.weight`` of the same name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum

import attrs

from deepinfer_core.types import WeightSizes
from deepinfer_v41.config import V41Config
from deepinfer_v41.layer_plan import LayerKind, LayerPlan

BLOCK = 32

ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}
"""Bytes of one element of each stored dtype, by the names of the safetensors format."""

_FLOATS = ("BF16", "F16", "F32")


class Role(Enum):
    """How a tensor is used; the scale roles say how many values share a scale."""

    PLAIN = "plain"
    BLOCK_FP8 = "block_fp8"
    BLOCK_SCALE = "block_scale"
    MXFP4 = "mxfp4"
    GROUP_SCALE = "group_scale"
    ROWS_FP8 = "rows_fp8"
    UNQUANTIZED = "unquantized"

    @property
    def is_scale(self) -> bool:
        return self in (Role.BLOCK_SCALE, Role.GROUP_SCALE)


@attrs.frozen
class TensorSpec:
    """One tensor. ``dtype`` is the released one; ``dtypes`` all that the loader takes, as safetensors names them."""

    dtype: str
    shape: tuple[int, ...]
    role: Role
    dtypes: tuple[str, ...]
    logical_shape: tuple[int, ...]
    """Of a weight: its values ``[out, in]`` (``in`` is twice the stored width for MXFP4). Of a scale: its weight's."""
    stage: int | None = None
    """Draft stage that the tensor belongs to; None for the backbone."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def tensor_table(config: V41Config) -> dict[str, TensorSpec]:
    """Name -> spec of every tensor of the checkpoint, in layer order. Names have no ``model.`` prefix."""
    return dict(_all_tensors(config))


def _all_tensors(c: V41Config) -> Iterator[tuple[str, TensorSpec]]:
    d = c.hidden_size
    yield from _plain(c, "embed.weight", c.vocab_size, d)
    yield from _plain(c, "head.weight", c.vocab_size, d)
    yield from _plain(c, "norm.weight", d)
    for plan in c.layers:
        for name, spec in _layer(c, plan):
            yield name, attrs.evolve(spec, stage=plan.layer - c.num_hidden_layers if plan.is_draft else None)
    if c.vision is not None and c.vision.num_hidden_layers:
        yield from _vision(c)


def _layer(c: V41Config, plan: LayerPlan) -> Iterator[tuple[str, TensorSpec]]:
    d, mix = c.hidden_size, c.hc_mult * (c.hc_mult + 2)
    p = plan.prefix
    for part in ("attn", "ffn"):
        yield from _plain(c, f"{p}.{part}_norm.weight", d)
        yield from _f32(f"{p}.hc_{part}_fn", mix, c.hc_mult * d)
        yield from _f32(f"{p}.hc_{part}_base", mix)
        yield from _f32(f"{p}.hc_{part}_scale", 3)
    yield from _attention(c, plan)
    yield from _experts(c, plan)
    if plan.engram is not None:
        yield from _engram(c, f"{p}.engram", c.engram_num_embeddings[plan.engram])
    if plan.is_draft:
        yield from _draft_extras(c, plan)


def _attention(c: V41Config, plan: LayerPlan) -> Iterator[tuple[str, TensorSpec]]:
    d, a = c.hidden_size, f"{plan.prefix}.attn"
    heads = c.num_attention_heads * c.head_dim
    yield from _f32(f"{a}.attn_sink", c.num_attention_heads)
    yield from _x8(c, f"{a}.wq_a", c.q_lora_rank, d)
    yield from _plain(c, f"{a}.q_norm.weight", c.q_lora_rank)
    yield from _x8(c, f"{a}.wq_b", heads, c.q_lora_rank)
    yield from _x8(c, f"{a}.wkv", c.head_dim, d)
    yield from _plain(c, f"{a}.kv_norm.weight", c.head_dim)
    yield from _x8(c, f"{a}.wo_a", c.o_groups * c.o_lora_rank, heads // c.o_groups)
    yield from _x8(c, f"{a}.wo_b", d, c.o_groups * c.o_lora_rank)
    if plan.kind is LayerKind.FULL:
        yield from _plain(c, f"{a}.compressor.wkv.weight", c.head_dim, d)
        if plan.ratio > 1:
            yield from _plain(c, f"{a}.compressor.wgate.weight", c.head_dim, d)
        yield from _plain(c, f"{a}.compressor.norm.weight", c.head_dim)
        yield from _plain(c, f"{a}.indexer.wk.weight", c.index_head_dim, c.head_dim)
        yield from _plain(c, f"{a}.indexer.k_norm.weight", c.index_head_dim)
    if plan.has_indexer:
        yield from _x8(c, f"{a}.indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank)
        yield from _plain(c, f"{a}.indexer.weights_proj.weight", c.index_n_heads, d)


def _experts(c: V41Config, plan: LayerPlan) -> Iterator[tuple[str, TensorSpec]]:
    d, inner, f = c.hidden_size, c.moe_intermediate_size, f"{plan.prefix}.ffn"
    n_experts = c.dspark_n_routed_experts if plan.is_draft else c.n_routed_experts
    yield from _plain(c, f"{f}.gate.weight", n_experts, d)
    yield from _f32(f"{f}.gate.bias", n_experts)
    if c.vision is not None:
        yield from _f32(f"{f}.gate.bias_vl", n_experts)
    shapes = {"w1": (inner, d), "w2": (d, inner), "w3": (inner, d)}
    for expert in range(n_experts):
        for name, (n_out, n_in) in shapes.items():
            yield from _x4(c, f"{f}.experts.{expert}.{name}", n_out, n_in)
    for name, (n_out, n_in) in shapes.items():
        yield from _x8(c, f"{f}.shared_experts.{name}", n_out, n_in)


def _engram(c: V41Config, prefix: str, rows: int) -> Iterator[tuple[str, TensorSpec]]:
    width = c.engram_head_dim
    if c.quantized:
        yield from _quantized(f"{prefix}.embed", "F8_E4M3", (rows, width), (rows, width), Role.ROWS_FP8, (1, BLOCK))
    else:
        yield from _unquantized(f"{prefix}.embed", rows, width)
    yield from _x8(c, f"{prefix}.wkv", (c.hc_mult + 1) * c.hidden_size, c.engram_columns * width)
    yield from _plain(c, f"{prefix}.q_weight", c.hc_mult, c.hidden_size)
    yield from _plain(c, f"{prefix}.k_weight", c.hc_mult, c.hidden_size)


def _draft_extras(c: V41Config, plan: LayerPlan) -> Iterator[tuple[str, TensorSpec]]:
    d, p = c.hidden_size, plan.prefix
    stage = plan.layer - c.num_hidden_layers
    if stage == 0:
        yield from _x8(c, f"{p}.main_proj", d, len(c.dspark_target_layer_ids) * d)
        yield from _plain(c, f"{p}.main_norm.weight", d)
    if stage == c.num_nextn_predict_layers - 1:
        yield from _plain(c, f"{p}.norm.weight", d)
        yield from _plain(c, f"{p}.markov_head.embed.weight", c.vocab_size, c.dspark_markov_rank)
        yield from _plain(c, f"{p}.markov_head.head.weight", c.vocab_size, c.dspark_markov_rank)
        yield from _plain(c, f"{p}.confidence_head.proj.weight", 1, d + c.dspark_markov_rank)


def _vision(c: V41Config) -> Iterator[tuple[str, TensorSpec]]:
    v = c.vision
    if v is None:
        return
    d, width = c.hidden_size, v.hidden_size
    yield from _plain(c, "vision.patch_embed.proj.weight", width, 3 * v.patch_size**2)
    yield from _plain(c, "vision.patch_embed.proj.bias", width)
    for block in range(v.num_hidden_layers):
        b = f"vision.blocks.{block}"
        yield from _plain(c, f"{b}.attn.wqkv.weight", 3 * width, width)
        yield from _plain(c, f"{b}.attn.wqkv.bias", 3 * width)
        yield from _plain(c, f"{b}.attn.wo.weight", width, width)
        yield from _plain(c, f"{b}.attn.wo.bias", width)
        yield from _plain(c, f"{b}.mlp.w1.weight", 2 * v.intermediate_size, width)
        yield from _plain(c, f"{b}.mlp.w2.weight", width, v.intermediate_size)
        yield from _plain(c, f"{b}.norm1.weight", width)
        yield from _plain(c, f"{b}.norm2.weight", width)
    yield from _plain(c, "vision.norm.weight", width)
    yield from _plain(c, "aligner.w1.weight", d, width * v.downsample_ratio**2)
    yield from _plain(c, "aligner.w1.bias", d)
    yield from _plain(c, "aligner.w2.weight", d, d)
    yield from _plain(c, "aligner.w2.bias", d)
    for name in ("image_start", "image_end", "image_newline"):
        yield from _plain(c, name, d)


# --- storage kinds


def _plain(c: V41Config, name: str, *shape: int) -> Iterator[tuple[str, TensorSpec]]:
    yield name, TensorSpec("BF16", shape, Role.PLAIN, ("BF16",) if c.quantized else _FLOATS, shape)


def _f32(name: str, *shape: int) -> Iterator[tuple[str, TensorSpec]]:
    # Hyper-connections, sinks and router biases stay FP32 in every variant.
    yield name, TensorSpec("F32", shape, Role.PLAIN, ("F32",), shape)


def _x8(c: V41Config, stem: str, n_out: int, n_in: int) -> Iterator[tuple[str, TensorSpec]]:
    if c.quantized:
        yield from _quantized(stem, "F8_E4M3", (n_out, n_in), (n_out, n_in), Role.BLOCK_FP8, (BLOCK, BLOCK))
    else:
        yield from _unquantized(stem, n_out, n_in)


def _x4(c: V41Config, stem: str, n_out: int, n_in: int) -> Iterator[tuple[str, TensorSpec]]:
    if c.quantized:
        yield from _quantized(stem, "I8", (n_out, n_in // 2), (n_out, n_in), Role.MXFP4, (1, BLOCK))
    else:
        yield from _unquantized(stem, n_out, n_in)


def _unquantized(stem: str, n_out: int, n_in: int) -> Iterator[tuple[str, TensorSpec]]:
    yield f"{stem}.weight", TensorSpec("BF16", (n_out, n_in), Role.UNQUANTIZED, _FLOATS, (n_out, n_in))


def _quantized(
    stem: str, dtype: str, stored: tuple[int, int], logical: tuple[int, int], role: Role, block: tuple[int, int]
) -> Iterator[tuple[str, TensorSpec]]:
    yield f"{stem}.weight", TensorSpec(dtype, stored, role, (dtype,), logical)
    grid = (-(-logical[0] // block[0]), -(-logical[1] // block[1]))
    scale_role = Role.BLOCK_SCALE if block[0] > 1 else Role.GROUP_SCALE
    # F32 scales are taken too when each is a power of two: the loader stores them as E8M0.
    yield f"{stem}.scale", TensorSpec("F8_E8M0", grid, scale_role, ("F8_E8M0", "F32"), logical)


def weight_sizes(config: V41Config, *, draft: bool) -> WeightSizes:
    """All weights, with the draft stages or without."""
    specs = [spec for spec in tensor_table(config).values() if draft or spec.stage is None]
    values = sum(math.prod(spec.logical_shape) for spec in specs if not spec.role.is_scale)
    return WeightSizes(values, sum(spec.nbytes for spec in specs))
