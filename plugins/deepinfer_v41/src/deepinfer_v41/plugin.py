"""The hooks of the model ``deepseek_v41``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define

from deepinfer_core.errors import ConfigError
from deepinfer_core.hookspecs import hookimpl
from deepinfer_core.interfaces import Backend, Model
from deepinfer_core.types import CacheSpec, CommandSpec, ModelCard, ModelMatch, Requirements, SchedulerHints
from deepinfer_v41.config import ARCHITECTURE, V41Config
from deepinfer_v41.weights.table import weight_sizes

NAME = "deepseek_v41"

OPS = frozenset(
    {
        "attn.plan",
        "attn.sparse_decode",
        "attn.sparse_prefill",
        "cache.load_segments",
        "compress.decode",
        "compress.prefill",
        "engram.fetch",
        "engram.gate",
        "engram.hash",
        "engram.prepare",
        "engram.prepare_gate",
        "gemm.dense",
        "gemm.einsum_heads",
        "index.block_max",
        "index.logits",
        "index.topk",
        "meta.draft_inputs",
        "meta.index_cat",
        "meta.logical_to_slot",
        "meta.window_index_decode",
        "meta.window_index_prefill",
        "mhc.expand",
        "mhc.head",
        "mhc.post",
        "mhc.pre",
        "mhc.prepare",
        "moe.combine",
        "moe.dispatch",
        "moe.experts",
        "moe.gate",
        "moe.swiglu",
        "norm.rms",
        "quant.cast_per_token",
        "quant.prepare_weight",
        "transform.fused",
        "transform.rope_rows",
        "transform.rope_table",
    }
)


@define(slots=False, eq=False)
class Payload:
    """What ``deepinfer_model_match`` learned, for the other hooks."""

    config: V41Config
    path: Path

    @cached_property
    def tables(self) -> Any:
        """Engram's tables; made once, because the tokenizer's whole vocabulary goes through them."""
        from deepinfer_v41.engram import EngramTables

        tokenizer = self.path / "tokenizer.json"
        return EngramTables.build(self.config, tokenizer if tokenizer.is_file() else None)


@hookimpl
def deepinfer_model_match(card: ModelCard) -> ModelMatch | None:
    """Takes every checkpoint of the architecture; a wrong configuration is an error, not a miss."""
    if card.architecture != ARCHITECTURE:
        return None
    config = V41Config.from_dict(card.config)
    main = "v41_fp4" if config.use_fp4_sparse_kv else "v41"
    needs = Requirements(
        ops=OPS,
        formats=frozenset({"v41", main, "index_fp4"}),
        limits={"heads": config.num_attention_heads, "topk": config.index_topk},
    )
    return ModelMatch(
        name=NAME,
        requirements=needs,
        score=100,
        card=card,
        payload=Payload(config, Path(card.path)),
        weight_sizes=lambda drafts: weight_sizes(config, draft=drafts > 0),
        with_layers=lambda layers: _with_layers(card, layers),
    )


@hookimpl
def deepinfer_cache_specs(match: ModelMatch, config: Any) -> Sequence[CacheSpec] | None:
    if match.name != NAME:
        return None
    from deepinfer_v41.caches import cache_specs

    model = _payload(match).config
    size = config.block_size or 128
    if size % model.block_multiple:
        raise ConfigError(
            f"block_size {size} does not fit the model",
            reason=f"a block must hold whole groups and candidate blocks: a multiple of {model.block_multiple} tokens",
            remedy=f"choose a multiple of {model.block_multiple}, or leave block_size out (128)",
        )
    return cache_specs(
        model,
        quantised=_quantised(config),
        block_size=size,
        drafts=config.draft_tokens > 0,
        backtrack=config.max_backtracking_tokens,
    )


@hookimpl
def deepinfer_model_create(match: ModelMatch, config: Any, backend: Backend) -> Model | None:
    if match.name != NAME:
        return None
    from deepinfer_v41.model import V41Model

    payload = _payload(match)
    return V41Model(
        payload.config,
        backend,
        payload.tables,
        numeric_mode=config.numeric_mode,
        cache_formats=_quantised(config),
        max_positions=config.max_model_len,
        draft_tokens=config.draft_tokens,
        confidence_temperatures=_temperatures(config),
        backtrack=config.max_backtracking_tokens,
    )


@hookimpl
def deepinfer_scheduler_hints(match: ModelMatch, backend: Backend, config: Any) -> SchedulerHints | None:
    if match.name != NAME:
        return None
    from deepinfer_v41.caches import swa_ring

    payload = _payload(match)
    model, tables, least = payload.config, payload.tables, config.max_backtracking_tokens
    return SchedulerHints(
        window=model.sliding_window,
        backtrack=swa_ring.backtrack(model, least),
        swa_ring=swa_ring.ring_length(model, least),
        ratios_sparse=model.ratios,
        state_slots=any(ratio > 1 for ratio in model.ratios),
        ngram=model.engram_max_ngram_size if model.engram_layer_ids else 0,
        ngram_table=ngram_table(model, tables.token_map) if model.engram_layer_ids else None,
        ngram_pad=tables.pad_id,
        max_model_len=model.max_position_embeddings,
        vocab_size=min(model.vocab_size, len(tables.token_map)),
        inputs="InputMetadataV41",
        index_topk=model.index_topk,
        prefix_replay=True,
        window_layers=model.num_hidden_layers,
        encoder_layers=model.n_encoder_layers,
    )


@hookimpl
def deepinfer_cli_commands() -> Sequence[CommandSpec]:
    return [
        CommandSpec(
            "checkpoint",
            "deepinfer_v41.checkpoint_command:checkpoint",
            "Say what a V4.1 checkpoint holds, and what is wrong with it.",
        ),
        CommandSpec(
            "released",
            "deepinfer_v41.released_command:released",
            "Write the sizes of the released V4.1 model, without weights.",
        ),
    ]


def ngram_table(config: V41Config, token_map: Any) -> Any:
    """The compressed id of each token id, int32; -1 (end of the look-back) for the image placeholder."""
    table = np.array(token_map, dtype=np.int32)
    if config.image_token_id is not None and config.image_token_id < len(table):
        table[config.image_token_id] = -1
    return table


def _with_layers(card: ModelCard, layers: int) -> dict[str, Any]:
    from deepinfer_v41.cut_down import cut_down  # needs the tokenizers library

    return cut_down(layers, card.config)


def _quantised(config: Any) -> bool:
    """Whether the caches are in the released formats (setting ``cache_formats``); FP32 entries otherwise."""
    return bool(config.cache_formats)


def _temperatures(config: Any) -> tuple[float, ...]:
    """Of the draft head's confidences: one for all drafts, or one for each. Raises ConfigError."""
    given: tuple[float, ...] = config.confidence_temperature
    if len(given) not in (1, config.draft_tokens) and config.draft_tokens:
        raise ConfigError(
            f"confidence_temperature has {len(given)} values for {config.draft_tokens} drafts",
            reason="each draft of a step has a temperature of its own, or all share one",
            remedy=f"give one value, or {config.draft_tokens} separated by commas",
            details={"field": "confidence_temperature", "value": list(given)},
        )
    return given


def _payload(match: ModelMatch) -> Payload:
    payload = match.payload
    if not isinstance(payload, Payload):
        raise ConfigError(
            f"the match for {match.name} was not made by this plugin",
            remedy="pass the ModelMatch of deepinfer_model_match unchanged",
        )
    return payload
