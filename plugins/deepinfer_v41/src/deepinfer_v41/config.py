"""The model's configuration: ``config.json`` or ``inference/config.json`` -> one flat, checked record.

Field names are those of the nested ``config.json`` (spec/model.md 1.2). Unknown keys are accepted, because the
release carries keys that matter to training only; everything that is read is checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs

from deepinfer_core.errors import ModelConfigError, ModelNotFound
from deepinfer_v41.config_fields import (
    Problem,
    boolean,
    fixed,
    integer,
    integers,
    number,
    one_of,
    optional_integer,
    raise_problems,
    read_fields,
)
from deepinfer_v41.config_rules import find_rule_problems
from deepinfer_v41.config_sections import (
    ARCHITECTURE,
    MODEL_TYPE,
    check_names,
    fill_absent_parts,
    find_sections,
    read_quantization,
)
from deepinfer_v41.layer_plan import LayerPlan, plan_layers

__all__ = ["ARCHITECTURE", "MODEL_TYPE", "V41Config", "VisionConfig"]


@attrs.frozen
class VisionConfig:
    """``vision_config``. Images are not run; the fields say which tensors a checkpoint holds.

    With 0 layers the checkpoint has no vision tensors, but still ``ffn.gate.bias_vl``.
    """

    num_hidden_layers: int = integer(0, section="vision", flat="vision_n_layers")
    hidden_size: int = integer(1, section="vision", flat="vision_dim")
    num_attention_heads: int = integer(1, section="vision", flat="vision_n_heads")
    intermediate_size: int = integer(1, section="vision", flat="vision_inter_dim")
    patch_size: int = integer(1, section="vision", flat="vision_patch_size")
    downsample_ratio: int = integer(1, section="vision", flat="vision_downsample_ratio")


@attrs.define(frozen=True, slots=False)
class V41Config:
    """A checked V4.1 configuration. Hashable by identity of its values; derived tables are cached on it."""

    # --- root
    bos_token_id: int = integer(0, section="ids", flat_default=0)
    eos_token_id: int = integer(0, section="ids", flat_default=1)
    pad_token_id: int = integer(0, section="ids", flat_default=2)
    image_token_id: int | None = optional_integer("must be a token id or null", section="root", default=None)
    tokenizer_compatibility: str = one_of(("release", "native"), section="root", default="release")

    # --- trunk
    vocab_size: int = integer(1)
    hidden_size: int = integer(1, flat="dim")
    moe_intermediate_size: int = integer(1, flat="moe_inter_dim")
    num_hidden_layers: int = integer(1, flat="n_layers")
    num_attention_heads: int = integer(1, flat="n_heads")
    num_key_value_heads: int = fixed(1, "all heads share one latent key")
    head_dim: int = integer(1)
    qk_rope_head_dim: int = integer(2, flat="rope_head_dim")
    q_lora_rank: int = integer(1)
    o_lora_rank: int = integer(1)
    o_groups: int = integer(1)
    hidden_act: str = fixed("silu", "the only activation of V4.1")
    swiglu_limit: float = number(0.0)
    attention_bias: bool = fixed(False, "V4.1 projections have no bias")
    attention_dropout: float = fixed(0.0, "inference has no dropout")
    rms_norm_eps: float = number(0.0, above=True, flat="norm_eps")
    tie_word_embeddings: bool = fixed(False, "embed and head are separate tensors")
    max_position_embeddings: int = integer(1, flat_default=1048576)

    # --- rotary positions
    rope_theta: float = number(1.0, above=True)
    compress_rope_theta: float = number(1.0, above=True)
    rope_type: str = fixed("yarn", "compressed layers use YaRN", section="rope")
    rope_factor: float = number(1.0, section="rope", key="factor", flat="rope_factor")
    beta_fast: float = number(0.0, above=True, section="rope")
    beta_slow: float = number(0.0, above=True, section="rope")
    original_seq_len: int = integer(1, section="rope", key="original_max_position_embeddings", flat="original_seq_len")

    # --- experts
    n_routed_experts: int = integer(1)
    n_shared_experts: int = fixed(1, "one shared expert of the routed width")
    num_experts_per_tok: int = integer(1, flat="n_activated_experts")
    scoring_func: str = fixed("sqrtsoftplus", "the only router score of V4.1", flat="score_func")
    topk_method: str = fixed("noaux_tc", "bias-corrected selection")
    norm_topk_prob: bool = fixed(True, "weights are normalised over the selection")
    routed_scaling_factor: float = number(0.0, above=True, flat="route_scale")
    gate_temp: float = number(0.0, above=True, default=1.0)

    # --- attention over window and compressed entries
    sliding_window: int = integer(1, flat="window_size")
    compress_ratios: tuple[int, ...] = integers(0)
    kv_source_layer_ids: tuple[int, ...] = integers(0, flat="kv_source_layers")
    index_source_layer_ids: tuple[int, ...] = integers(0, flat="index_source_layers")
    index_k_source_layer_ids: tuple[int, ...] | None = integers(0, default=None)
    index_n_heads: int = integer(1)
    index_head_dim: int = integer(1)
    index_topk: int = integer(1)
    candidate_source_layer_id: int | None = optional_integer(
        "must be a layer id, or null or negative for no candidates", default=None, flat="candidate_source_layer"
    )
    candidate_topk_blocks: int = integer(1, default=1)
    candidate_block_size: int = integer(1, default=1)
    use_fp4_sparse_kv: bool = boolean(default=True)

    # --- hyper-connections
    hc_mult: int = integer(1)
    hc_sinkhorn_iters: int = integer(1)
    hc_eps: float = number(0.0)
    hc_shifted: bool = fixed(True, "single-pass hyper-connections are the only kind of V4.1")

    # --- Engram
    engram_layer_ids: tuple[int, ...] = integers(0)
    engram_num_embeddings: tuple[int, ...] = integers(1)
    engram_max_ngram_size: int = integer(2, 64)
    engram_vocab_size: int = integer(2, 1 << 40)
    engram_n_heads: int = integer(1, 4096)
    engram_head_dim: int = integer(1)
    engram_pad_token_id: int = integer(0, flat="engram_pad_id")
    engram_compressed_vocab_size: int = integer(1)
    engram_token_map: str = one_of(("tokenizer", "identity"), default="tokenizer")

    # --- draft head
    num_nextn_predict_layers: int = integer(0, flat="n_mtp_layers")
    dspark_block_size: int = integer(1)
    dspark_noise_token_id: int = integer(0)
    dspark_target_layer_ids: tuple[int, ...] = integers(0)
    dspark_target_attn_input: bool = fixed(True, "the draft head reads the inputs of its target layers")
    dspark_markov_rank: int = integer(1)
    dspark_n_routed_experts: int = integer(1)
    dspark_num_experts_per_tok: int = integer(1, flat="dspark_n_activated_experts")

    # --- formats
    quantized: bool = True
    """The released formats (FP8 32x32 blocks, MXFP4 experts); false: BF16, F16 or F32 weights without scales."""
    vision: VisionConfig | None = None

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> V41Config:
        """Read and check a parsed ``config.json`` (with ``text_config``) or flat ``inference/config.json``.

        Raises ModelConfigError (E_MODEL_CONFIG) that names each wrong field, its value, the rule and a remedy.
        """
        problems: list[Problem] = []
        flat = "text_config" not in config
        sections = find_sections(config, flat, problems)
        raise_problems(problems)
        check_names(config, flat, problems)
        if flat or config.get("vision_config") is not None:
            vision = _read_vision(sections, flat, problems)
        else:
            vision = None
        quantized = read_quantization(config, flat, problems)
        text = fill_absent_parts(sections["text"])
        values = read_fields(cls, {**sections, "text": text}, flat=flat, problems=problems)
        raise_problems(problems)
        if values["index_k_source_layer_ids"] is None:
            values["index_k_source_layer_ids"] = values["kv_source_layer_ids"]
        parsed = cls(**values, quantized=quantized, vision=vision)  # type: ignore[arg-type]
        raise_problems(find_rule_problems(parsed))
        return parsed

    @classmethod
    def from_directory(cls, directory: Path | str) -> V41Config:
        """Read ``config.json`` of a model directory. Raises ModelNotFound or ModelConfigError."""
        path = Path(directory) / "config.json"
        if not path.is_file():
            raise ModelNotFound(
                f"{path} is missing", remedy="give the directory of a model: config.json and its weights"
            )
        try:
            config = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ModelConfigError(f"{path} cannot be read: {error}", remedy="download config.json again") from error
        if not isinstance(config, dict):
            raise ModelConfigError(f"{path} holds no object", remedy="download config.json again")
        return cls.from_dict(config)

    # --- derived

    @cached_property
    def layers(self) -> tuple[LayerPlan, ...]:
        """One plan per layer, draft stages after the backbone (runtime layers ``L .. L+M-1``)."""
        return plan_layers(self)

    @property
    def n_layers_total(self) -> int:
        """Backbone layers and draft stages."""
        return self.num_hidden_layers + self.num_nextn_predict_layers

    @property
    def n_prefill_layer(self) -> int:
        """The first layer of ratio 1, where the decoder begins; the number of layers when there is none."""
        backbone = self.compress_ratios[: self.num_hidden_layers]
        return backbone.index(1) if 1 in backbone else self.num_hidden_layers

    @property
    def n_encoder_layers(self) -> int:
        """Layers in front of the decoder half, where no layer from there on but its first owns global KV, and none
        carries an Engram (``spec/model.md`` 5.3); 0: prompt rows cannot be left out anywhere."""
        start = self.n_prefill_layer
        late = [layer for layer in (*self.kv_source_layer_ids, *self.engram_layer_ids) if layer > start]
        is_split = 0 < start < self.num_hidden_layers and start in self.kv_source_layer_ids
        return start if is_split and not late and start not in self.engram_layer_ids else 0

    @property
    def ratios(self) -> tuple[int, ...]:
        """The compression ratios in use, ascending, without 0."""
        return tuple(sorted({ratio for ratio in self.compress_ratios if ratio > 0}))

    @property
    def block_multiple(self) -> int:
        """A cache block must hold a multiple of so many tokens: whole groups, and whole candidate blocks."""
        grain = 1 if self.candidate_source_layer_id is None else self.candidate_block_size
        return max((ratio * grain for ratio in self.ratios), default=1)

    @property
    def engram_columns(self) -> int:
        """Table rows read per token and Engram layer: one per order (2..N) and head."""
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads

    @property
    def max_draft_tokens(self) -> int:
        """The longest draft the checkpoint's head can propose; 0 without one."""
        return self.dspark_block_size if self.num_nextn_predict_layers else 0


def _read_vision(sections: Mapping[str, Mapping[str, Any]], flat: bool, problems: list[Problem]) -> VisionConfig | None:
    nested = sections["vision"] is not sections["root"]
    if not nested and "vision_n_layers" not in sections["root"]:
        return None
    # Flat names exist in a flat file only; a nested section always has its own names.
    prefix = "vision_config." if nested else ""
    before = len(problems)
    if not nested:
        # Without the prefix the flat names would fall back to the text model's (hidden_size, ...).
        own = {key: value for key, value in sections["root"].items() if key.startswith("vision_")}
        sections = {**sections, "vision": own}
    elif sections["vision"].get("num_hidden_layers") == 0:
        # A text-only checkpoint: the dimensions of a tower that does not exist may be left out.
        absent = {field.name: 1 for field in attrs.fields(VisionConfig)}
        sections = {**sections, "vision": {**absent, **sections["vision"]}}
    values = read_fields(VisionConfig, sections, flat=flat and not nested, problems=problems, prefix=prefix)
    return VisionConfig(**values) if len(problems) == before else None  # type: ignore[arg-type]
