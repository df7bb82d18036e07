"""Reading, checking and deriving from the configuration (spec/model.md 1.2)."""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from typing import Any

import attrs
import pytest
from released_config import RELEASED, flat, released
from tiny_checkpoint import tiny_config

from deepinfer_core.errors import ModelConfigError
from deepinfer_v41.config import V41Config
from deepinfer_v41.layer_plan import LayerKind


def problem_of(config: dict[str, Any]) -> ModelConfigError:
    with pytest.raises(ModelConfigError) as caught:
        V41Config.from_dict(config)
    return caught.value


def fields_of(error: ModelConfigError) -> list[str]:
    return [problem["field"] for problem in error.details["problems"]]


def test_released_config_gives_the_published_layers() -> None:
    config = V41Config.from_dict(RELEASED)
    kinds = {kind: [p.layer for p in config.layers if p.kind is kind] for kind in LayerKind}
    assert kinds[LayerKind.SWA] == [0, 1, 40, 41, 42]
    assert kinds[LayerKind.FULL] == [2, 8, 14, 20]
    assert kinds[LayerKind.REINDEX] == [24, 28, 32, 36]
    assert len(kinds[LayerKind.REUSE]) == 30
    assert config.n_prefill_layer == 20
    assert config.ratios == (1, 2)
    assert config.block_multiple == 16
    assert config.engram_columns == 24
    assert config.max_draft_tokens == 5
    assert config.n_layers_total == 43


@pytest.mark.parametrize(
    ("layer", "kv", "topk", "candidates"),
    [
        (0, None, None, None),
        (2, 2, 2, None),
        (7, 2, 2, None),
        (19, 14, 14, None),
        (20, 20, 20, None),
        (23, 20, 20, None),
        (24, 20, 24, 20),
        (27, 20, 24, None),
        (39, 20, 36, None),
        (36, 20, 36, 20),
        (42, None, None, None),
    ],
)
def test_layer_sources_are_the_nearest_at_or_before(layer: int, kv: Any, topk: Any, candidates: Any) -> None:
    plan = V41Config.from_dict(RELEASED).layers[layer]
    assert (plan.kv_source, plan.topk_source, plan.candidate_source) == (kv, topk, candidates)


def test_layers_carry_engrams_taps_and_candidate_source() -> None:
    layers = V41Config.from_dict(RELEASED).layers
    assert {p.layer: p.engram for p in layers if p.engram is not None} == {1: 0, 14: 1}
    assert [p.layer for p in layers if p.is_draft_target] == [37, 38, 39]
    assert [p.layer for p in layers if p.is_candidate_source] == [20]
    assert [p.prefix for p in layers if p.is_draft] == ["mtp.0", "mtp.1", "mtp.2"]


def test_flat_config_equals_the_nested_one() -> None:
    assert V41Config.from_dict(flat(RELEASED)) == V41Config.from_dict(RELEASED)


def test_flat_config_of_bf16_weights_is_unquantized() -> None:
    config = flat(RELEASED) | {"dtype": "bf16", "expert_dtype": None}
    assert V41Config.from_dict(config).quantized is False
    assert fields_of(problem_of(config | {"expert_dtype": "fp4"})) == ["dtype, expert_dtype"]


def test_flat_config_of_another_architecture_is_refused() -> None:
    config = flat(RELEASED) | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    assert fields_of(problem_of(config)) == ["architectures", "model_type"]


def test_shipped_config_is_accepted() -> None:
    text = (files("deepinfer_v41") / "checkpoints" / "v41-tiny" / "config.json").read_text("utf-8")
    config = V41Config.from_dict(json.loads(text))
    assert " ".join(p.kind.value for p in config.layers[:8]) == "swa swa full reuse full reuse reindex reuse"
    assert config.vision is not None
    assert config.vision.num_hidden_layers == 0


def test_absent_optional_fields_get_their_defaults() -> None:
    config = V41Config.from_dict(RELEASED)
    assert config.index_k_source_layer_ids == config.kv_source_layer_ids
    assert (config.hc_shifted, config.use_fp4_sparse_kv, config.dspark_target_attn_input) == (True, True, True)
    assert (config.gate_temp, config.tokenizer_compatibility, config.engram_token_map) == (1.0, "release", "tokenizer")


def test_unknown_keys_are_accepted() -> None:
    assert V41Config.from_dict(released(moon_phase="full") | {"extra": [1]}) == V41Config.from_dict(RELEASED)


def test_absent_quantization_means_unquantized_weights() -> None:
    config = copy.deepcopy(RELEASED)
    del config["quantization_config"]
    assert V41Config.from_dict(config).quantized is False


def test_negative_or_null_candidate_source_disables_candidates() -> None:
    for value in (None, -1):
        config = V41Config.from_dict(released(candidate_source_layer_id=value))
        assert config.candidate_source_layer_id is None
        assert all(plan.candidate_source is None for plan in config.layers)


def test_model_without_draft_stages_needs_no_draft_fields() -> None:
    config = released(num_nextn_predict_layers=0, compress_ratios=[0, 0] + [2] * 18 + [1] * 20)
    for name in [name for name in config["text_config"] if name.startswith("dspark_")]:
        del config["text_config"][name]
    assert V41Config.from_dict(config).max_draft_tokens == 0


def test_model_without_engram_needs_no_engram_fields() -> None:
    config = released(engram_layer_ids=[])
    for name in [name for name in config["text_config"] if name.startswith("engram_") and name != "engram_layer_ids"]:
        del config["text_config"][name]
    assert V41Config.from_dict(config).engram_layer_ids == ()


REQUIRED_TEXT = [
    field.name
    for field in attrs.fields(V41Config)
    if field.name in RELEASED["text_config"]
    # Fields with the one allowed value may be left out; the candidate fields default to "no candidates".
    and field.metadata
    and not next(iter(field.metadata.values())).rule.endswith(")")
    and not field.name.startswith("candidate_")
]


def test_required_fields_are_most_of_the_section() -> None:
    assert len(REQUIRED_TEXT) > 40


@pytest.mark.parametrize("name", REQUIRED_TEXT)
def test_missing_field_is_named(name: str) -> None:
    config = released()
    del config["text_config"][name]
    error = problem_of(config)
    assert fields_of(error) == [name]
    assert str(error).startswith(f"E_MODEL_CONFIG: model configuration: {name} is missing\n  reason: must be ")


def test_missing_field_error_is_complete() -> None:
    config = released()
    config["text_config"]["hiden_size"] = config["text_config"].pop("hidden_size")
    assert str(problem_of(config)) == (
        "E_MODEL_CONFIG: model configuration: hidden_size is missing\n"
        "  reason: must be an integer of at least 1\n"
        "  remedy: the configuration has 'hiden_size': rename it to 'hidden_size'"
    )


@pytest.mark.parametrize("value", [True, "128", 128.0, 0, -1, None, [128]])
def test_wrong_type_or_range_is_refused(value: object) -> None:
    error = problem_of(released(hidden_size=value))
    assert str(error) == (
        f"E_MODEL_CONFIG: model configuration: hidden_size is {value!r}\n"
        "  reason: must be an integer of at least 1\n"
        "  remedy: correct hidden_size in the model's config.json"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rms_norm_eps", 0),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", True),
        ("hc_eps", "1e-6"),
        ("swiglu_limit", -1),
        ("engram_layer_ids", [1, True]),
        ("engram_layer_ids", 1),
        ("use_fp4_sparse_kv", 1),
        ("norm_topk_prob", 1),
        ("norm_topk_prob", False),
        ("num_key_value_heads", 2),
        ("hidden_act", "gelu"),
        ("scoring_func", "sigmoid"),
        ("topk_method", "greedy"),
        ("attention_bias", True),
        ("attention_dropout", 0.1),
        ("tie_word_embeddings", True),
        ("hc_shifted", False),
        ("dspark_target_attn_input", False),
        ("gate_temp", 0),
        ("n_shared_experts", 2),
        ("candidate_source_layer_id", "20"),
        ("engram_token_map", "none"),
    ],
)
def test_field_outside_its_rule_is_named(name: str, value: object) -> None:
    assert fields_of(problem_of(released(**{name: value}))) == [name]


@pytest.mark.parametrize("name", ["engram_vocab_size", "engram_n_heads", "engram_max_ngram_size", "swiglu_limit"])
def test_absurdly_large_value_is_refused_at_once(name: str) -> None:
    assert name in fields_of(problem_of(released(**{name: 10**400})))


def test_vision_section_of_no_layers_needs_no_dimensions() -> None:
    config = V41Config.from_dict(released() | {"vision_config": {"num_hidden_layers": 0}})
    assert config.vision is not None
    error = problem_of(released() | {"vision_config": {"num_hidden_layers": 1}})
    assert "vision_config.hidden_size" in fields_of(error)


def test_several_wrong_fields_are_listed_together() -> None:
    error = problem_of(released(hidden_size="a", head_dim=None, hidden_act="relu"))
    assert fields_of(error) == ["hidden_size", "head_dim", "hidden_act"]
    assert "3 problems\n    hidden_size is 'a': must be an integer of at least 1\n" in str(error)


@pytest.mark.parametrize(
    ("root", "field"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "architectures"),
        ({"architectures": []}, "architectures"),
        ({"model_type": "llama"}, "model_type"),
        ({"dtype": "float16"}, "dtype"),
        ({"eos_token_id": "1"}, "eos_token_id"),
        ({"text_config": 3}, "text_config"),
        ({"vision_config": 3}, "vision_config"),
        ({"quantization_config": "fp8"}, "quantization_config"),
        ({"tokenizer_compatibility": "x"}, "tokenizer_compatibility"),
    ],
)
def test_root_field_outside_its_rule_is_named(root: dict[str, Any], field: str) -> None:
    assert field in fields_of(problem_of(released() | root))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quant_method", "gptq"),
        ("activation_scheme", "static"),
        ("weight_block_size", [128, 128]),
        ("scale_fmt", "f32"),
        ("expert_dtype", "fp8"),
    ],
)
def test_quantization_other_than_the_released_is_refused(name: str, value: object) -> None:
    config = released()
    config["quantization_config"][name] = value
    error = problem_of(config)
    assert fields_of(error) == [f"quantization_config.{name}"]
    assert "leave quantization_config out for unquantised weights" in error.remedy
    del config["quantization_config"][name]
    assert fields_of(problem_of(config)) == [f"quantization_config.{name}"]


@pytest.mark.parametrize("name", ["rope_type", "factor", "original_max_position_embeddings"])
def test_rope_scaling_is_checked(name: str) -> None:
    config = released()
    config["text_config"]["rope_scaling"][name] = "x"
    assert fields_of(problem_of(config)) == [name]
    assert fields_of(problem_of(released(rope_scaling=None))) == ["rope_scaling"]


RATIOS = RELEASED["text_config"]["compress_ratios"]


@pytest.mark.parametrize(
    ("changes", "field", "rule"),
    [
        (
            {"compress_ratios": RATIOS[:-1]},
            "compress_ratios",
            "must have num_hidden_layers + num_nextn_predict_layers = 43 entries, has 42",
        ),
        ({"compress_ratios": [*RATIOS[:-1], 1]}, "compress_ratios", "must be 0 for the 3 draft layers"),
        ({"compress_ratios": [0, 0, 4, *RATIOS[3:]]}, "compress_ratios", "must hold 0, 1 and 2 only"),
        (
            {"compress_ratios": [0, 2, *RATIOS[2:]]},
            "compress_ratios",
            "layer 1 has ratio 2 but no kv source at or before it",
        ),
        ({"compress_ratios": [*RATIOS[:5], 0, *RATIOS[6:]]}, "compress_ratios", "layer 5 has ratio 0"),
        (
            {"compress_ratios": [*RATIOS[:19], 1, *RATIOS[20:]]},
            "compress_ratios",
            "layer 19 has ratio 1, but its source, layer 14, has 2; the first layer of ratio 1 must",
        ),
        (
            {"kv_source_layer_ids": [2, 8, 14, 20, 22]},
            "index_source_layer_ids",
            "must contain every index-key source; not [22]",
        ),
        (
            {"index_k_source_layer_ids": [2, 8, 14]},
            "index_k_source_layer_ids",
            "must contain every kv_source_layer_ids; not [20]",
        ),
        (
            {"index_k_source_layer_ids": [2, 8, 14, 20, 24]},
            "index_k_source_layer_ids",
            "layers [24] would own index keys without main keys",
        ),
        (
            {"index_source_layer_ids": [1, 2, 8, 14, 20, 24, 28, 32, 36]},
            "index_source_layer_ids",
            "layer 1 precedes the first kv source",
        ),
        ({"kv_source_layer_ids": [2, 8, 20, 14]}, "kv_source_layer_ids", "ascending"),
        (
            {"index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 40]},
            "index_source_layer_ids",
            "below num_hidden_layers (40)",
        ),
        ({"candidate_source_layer_id": 21}, "candidate_source_layer_id", "must be one of index_source_layer_ids"),
        (
            {"candidate_source_layer_id": 14},
            "candidate_source_layer_id",
            "index source 20 has ratio 1, the candidate source 2",
        ),
        ({"candidate_topk_blocks": 63}, "candidate_topk_blocks", "= 504 must be at least index_topk (512)"),
        ({"engram_layer_ids": [1, 20]}, "engram_layer_ids", "must be below the decoder boundary, layer 20; not [20]"),
        ({"engram_layer_ids": [1, 1]}, "engram_layer_ids", "must hold different layer ids"),
        (
            {"engram_num_embeddings": [384006168]},
            "engram_num_embeddings",
            "one entry for each of engram_layer_ids [1, 14]",
        ),
        ({"engram_num_embeddings": [384006168, 384016683]}, "engram_num_embeddings", "must be [384006168, 384016682]"),
        (
            {"engram_compressed_vocab_size": 129281},
            "engram_compressed_vocab_size",
            "must be at most vocab_size (129280)",
        ),
        ({"engram_token_map": "identity"}, "engram_compressed_vocab_size", "must equal vocab_size (129280)"),
        ({"engram_pad_token_id": 129280}, "engram_pad_token_id", "must be below vocab_size"),
        (
            {"dspark_target_layer_ids": [19, 20]},
            "dspark_target_layer_ids",
            "or all at or after, the decoder boundary, layer 20",
        ),
        ({"dspark_target_layer_ids": []}, "dspark_target_layer_ids", "must name the layers"),
        ({"dspark_noise_token_id": 129280}, "dspark_noise_token_id", "must be below vocab_size"),
        (
            {"dspark_num_experts_per_tok": 129},
            "dspark_num_experts_per_tok",
            "must be at most dspark_n_routed_experts (128)",
        ),
        ({"num_experts_per_tok": 385}, "num_experts_per_tok", "must be at most n_routed_experts (384)"),
        ({"o_groups": 7}, "o_groups", "must divide num_attention_heads (64)"),
        ({"qk_rope_head_dim": 63}, "qk_rope_head_dim", "must be even"),
        ({"qk_rope_head_dim": 192}, "index_head_dim", "must be at least qk_rope_head_dim (192)"),
        ({"head_dim": 520}, "head_dim", "must be a multiple of 32"),
        ({"moe_intermediate_size": 2300}, "moe_intermediate_size", "must be a multiple of 32"),
        ({"vocab_size": 129000}, "image_token_id", "must be below vocab_size (129000)"),
    ],
)
def test_rule_between_fields_is_enforced(changes: dict[str, Any], field: str, rule: str) -> None:
    error = problem_of(released(**changes))
    assert field in fields_of(error)
    assert rule in str(error)
    assert error.remedy


def test_draft_targets_all_before_the_boundary_are_accepted() -> None:
    assert V41Config.from_dict(released(dspark_target_layer_ids=[17, 18, 19])).dspark_target_layer_ids == (17, 18, 19)


def test_tiny_config_is_sound_with_and_without_vision() -> None:
    assert V41Config.from_dict(tiny_config()).vision is None
    assert V41Config.from_dict(tiny_config(vision=True)).vision is not None


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, 20),
        ({"kv_source_layer_ids": [2, 8, 14, 20, 30], "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 30, 32, 36]}, 0),
    ],
)
def test_encoder_half_ends_where_no_layer_behind_it_owns_global_keys(changes: dict[str, Any], layers: int) -> None:
    assert V41Config.from_dict(released(**changes)).n_encoder_layers == layers
