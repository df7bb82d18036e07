"""Rules between configuration fields (spec/model.md 1.2, "Validation rules"). Each field alone is already sound.

The groups run in order and stop at the first one with problems: later rules rely on earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from deepinfer_v41.config_fields import Problem
from deepinfer_v41.layer_plan import nearest_source
from deepinfer_v41.primes import engram_primes

if TYPE_CHECKING:
    from deepinfer_v41.config import V41Config

GROUP: Final = 32
"""Values that share a scale: the quantisation group of activations, window and index entries, and weights."""


def find_rule_problems(config: V41Config) -> list[Problem]:
    """The problems of the first group of rules that has any; empty for a sound configuration."""
    groups: tuple[Callable[[V41Config], Iterator[Problem]], ...] = (
        _check_dimensions,
        _check_layer_ids,
        _check_sources,
        _check_candidates,
        _check_engram,
        _check_draft,
    )
    for group in groups:
        problems = list(group(config))
        if problems:
            return problems
    return []


def _problem(field: str, value: object, rule: str, remedy: str = "") -> Problem:
    return Problem(field, value, rule, remedy or f"correct {field} in the model's config.json")


def _check_dimensions(c: V41Config) -> Iterator[Problem]:
    if c.num_attention_heads % c.o_groups:
        yield _problem("o_groups", c.o_groups, f"must divide num_attention_heads ({c.num_attention_heads})")
    if c.qk_rope_head_dim % 2:
        yield _problem("qk_rope_head_dim", c.qk_rope_head_dim, "must be even: rotary channels come in pairs")
    for name in ("head_dim", "index_head_dim"):
        width = getattr(c, name)
        if width < c.qk_rope_head_dim:
            yield _problem(name, width, f"must be at least qk_rope_head_dim ({c.qk_rope_head_dim})")
        if width % GROUP:
            yield _problem(
                name, width, f"must be a multiple of {GROUP}: cache entries share a scale per {GROUP} values"
            )
    if c.num_experts_per_tok > c.n_routed_experts:
        rule = f"must be at most n_routed_experts ({c.n_routed_experts})"
        yield _problem("num_experts_per_tok", c.num_experts_per_tok, rule)
    if c.beta_fast <= c.beta_slow:
        yield _problem("beta_fast", c.beta_fast, f"must be greater than beta_slow ({c.beta_slow})")
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"):
        token = getattr(c, name)
        if token is not None and token >= c.vocab_size:
            yield _problem(name, token, f"must be below vocab_size ({c.vocab_size})")
    if c.quantized:
        names = ["hidden_size", "moe_intermediate_size", "q_lora_rank", "o_lora_rank"]
        for name in [*names, *(["engram_head_dim"] if c.engram_layer_ids else [])]:
            if getattr(c, name) % GROUP:
                rule = f"must be a multiple of {GROUP}, the quantisation group of the released formats"
                yield _problem(name, getattr(c, name), rule)


def _check_layer_ids(c: V41Config) -> Iterator[Problem]:
    n_layers, n_draft = c.num_hidden_layers, c.num_nextn_predict_layers
    if len(c.compress_ratios) != n_layers + n_draft:
        rule = (
            f"must have num_hidden_layers + num_nextn_predict_layers = {n_layers + n_draft} entries, "
            f"has {len(c.compress_ratios)}"
        )
        yield _problem("compress_ratios", list(c.compress_ratios), rule)
    elif any(ratio not in (0, 1, 2) for ratio in c.compress_ratios):
        yield _problem("compress_ratios", list(c.compress_ratios), "must hold 0, 1 and 2 only")
    elif any(c.compress_ratios[n_layers:]):
        rule = f"must be 0 for the {n_draft} draft layers at the end: they have a window only"
        yield _problem("compress_ratios", list(c.compress_ratios), rule)
    lists = {
        "kv_source_layer_ids": c.kv_source_layer_ids,
        "index_source_layer_ids": c.index_source_layer_ids,
        "index_k_source_layer_ids": c.index_k_source_layer_ids or (),
        "dspark_target_layer_ids": c.dspark_target_layer_ids,
    }
    for name, ids in lists.items():
        if list(ids) != sorted(set(ids)) or any(layer >= n_layers for layer in ids):
            rule = f"must hold different layer ids below num_hidden_layers ({n_layers}), ascending"
            yield _problem(name, list(ids), rule)
    # The order of Engram layers decides their primes, so any order is kept.
    if len(set(c.engram_layer_ids)) != len(c.engram_layer_ids) or any(i >= n_layers for i in c.engram_layer_ids):
        rule = f"must hold different layer ids below num_hidden_layers ({n_layers})"
        yield _problem("engram_layer_ids", list(c.engram_layer_ids), rule)


def _check_sources(c: V41Config) -> Iterator[Problem]:
    kv, index_k, index = c.kv_source_layer_ids, c.index_k_source_layer_ids or (), c.index_source_layer_ids
    if not set(kv) <= set(index_k):
        missing = sorted(set(kv) - set(index_k))
        yield _problem(
            "index_k_source_layer_ids", list(index_k), f"must contain every kv_source_layer_ids; not {missing}"
        )
    elif set(index_k) != set(kv):
        surplus = sorted(set(index_k) - set(kv))
        rule = f"layers {surplus} would own index keys without main keys, which the released layout cannot store"
        remedy = "leave index_k_source_layer_ids out: index keys live on the kv_source_layer_ids"
        yield _problem("index_k_source_layer_ids", list(index_k), rule, remedy)
    if not set(index_k) <= set(index):
        missing = sorted(set(index_k) - set(index))
        yield _problem("index_source_layer_ids", list(index), f"must contain every index-key source; not {missing}")
    first = kv[0] if kv else c.num_hidden_layers
    for layer in range(c.num_hidden_layers):
        ratio = c.compress_ratios[layer]
        if layer < first:
            if ratio:
                rule = f"layer {layer} has ratio {ratio} but no kv source at or before it: it must be 0"
                yield _problem("compress_ratios", list(c.compress_ratios), rule)
            if layer in index:
                rule = f"layer {layer} precedes the first kv source: it has no entries to select from"
                yield _problem("index_source_layer_ids", list(index), rule)
            continue
        if ratio == 0:
            rule = f"layer {layer} has ratio 0, but layers from the first kv source ({first}) on must compress"
            yield _problem("compress_ratios", list(c.compress_ratios), rule)
            continue
        source = nearest_source(kv, layer)
        if source is not None and c.compress_ratios[source] != ratio:
            rule = f"layer {layer} has ratio {ratio}, but its source, layer {source}, has {c.compress_ratios[source]}"
            boundary = c.n_prefill_layer
            if layer == boundary:
                rule += "; the first layer of ratio 1 must itself be a kv source"
            yield _problem("compress_ratios", list(c.compress_ratios), rule)


def _check_candidates(c: V41Config) -> Iterator[Problem]:
    source = c.candidate_source_layer_id
    if source is None:
        return
    if source not in c.index_source_layer_ids:
        rule = f"must be one of index_source_layer_ids {list(c.index_source_layer_ids)}, or null for no candidates"
        yield _problem("candidate_source_layer_id", source, rule)
        return
    for layer in c.index_source_layer_ids:
        if layer > source and c.compress_ratios[layer] != c.compress_ratios[source]:
            rule = (
                f"index source {layer} has ratio {c.compress_ratios[layer]}, the candidate source "
                f"{c.compress_ratios[source]}: their blocks would not match"
            )
            yield _problem("candidate_source_layer_id", source, rule)
    pool = c.candidate_topk_blocks * c.candidate_block_size
    if pool < c.index_topk:
        rule = (
            f"candidate_topk_blocks * candidate_block_size ({c.candidate_block_size}) = {pool} "
            f"must be at least index_topk ({c.index_topk})"
        )
        yield _problem("candidate_topk_blocks", c.candidate_topk_blocks, rule)


def _check_engram(c: V41Config) -> Iterator[Problem]:
    boundary = c.n_prefill_layer
    late = [layer for layer in c.engram_layer_ids if layer >= boundary]
    if late and boundary < c.num_hidden_layers:
        rule = f"must be below the decoder boundary, layer {boundary}; not {late}"
        yield _problem("engram_layer_ids", list(c.engram_layer_ids), rule)
    if not c.engram_layer_ids:
        return
    if c.engram_pad_token_id >= c.vocab_size:
        yield _problem("engram_pad_token_id", c.engram_pad_token_id, f"must be below vocab_size ({c.vocab_size})")
    if c.engram_compressed_vocab_size > c.vocab_size:
        rule = f"must be at most vocab_size ({c.vocab_size})"
        yield _problem("engram_compressed_vocab_size", c.engram_compressed_vocab_size, rule)
    if c.engram_token_map == "identity" and c.engram_compressed_vocab_size != c.vocab_size:
        rule = f"must equal vocab_size ({c.vocab_size}) with engram_token_map 'identity'"
        yield _problem("engram_compressed_vocab_size", c.engram_compressed_vocab_size, rule)
    if len(c.engram_num_embeddings) != len(c.engram_layer_ids):
        rule = f"must have one entry for each of engram_layer_ids {list(c.engram_layer_ids)}"
        yield _problem("engram_num_embeddings", list(c.engram_num_embeddings), rule)
        return
    primes = engram_primes(c.engram_vocab_size, len(c.engram_layer_ids), c.engram_columns)
    expected = [sum(row) for row in primes]
    if list(c.engram_num_embeddings) != expected:
        rule = (
            f"must be {expected}: the sums of the {c.engram_columns} bucket primes a layer that start at "
            f"engram_vocab_size ({c.engram_vocab_size})"
        )
        yield _problem("engram_num_embeddings", list(c.engram_num_embeddings), rule)


def _check_draft(c: V41Config) -> Iterator[Problem]:
    if c.num_nextn_predict_layers == 0:
        return
    targets, boundary = c.dspark_target_layer_ids, c.n_prefill_layer
    if not targets:
        yield _problem("dspark_target_layer_ids", [], "must name the layers whose inputs feed the draft head")
    if len({layer >= boundary for layer in targets}) > 1:
        rule = f"must lie all before, or all at or after, the decoder boundary, layer {boundary}"
        yield _problem("dspark_target_layer_ids", list(targets), rule)
    if c.dspark_noise_token_id >= c.vocab_size:
        yield _problem("dspark_noise_token_id", c.dspark_noise_token_id, f"must be below vocab_size ({c.vocab_size})")
    if c.dspark_num_experts_per_tok > c.dspark_n_routed_experts:
        rule = f"must be at most dspark_n_routed_experts ({c.dspark_n_routed_experts})"
        yield _problem("dspark_num_experts_per_tok", c.dspark_num_experts_per_tok, rule)
