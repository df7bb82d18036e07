"""Variants of the released model's ``config.json`` for tests."""

from __future__ import annotations

import copy
from typing import Any

from deepinfer_v41.released import RELEASED

FLAT_NAMES = {
    "hidden_size": "dim",
    "moe_intermediate_size": "moe_inter_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "qk_rope_head_dim": "rope_head_dim",
    "rms_norm_eps": "norm_eps",
    "num_experts_per_tok": "n_activated_experts",
    "scoring_func": "score_func",
    "routed_scaling_factor": "route_scale",
    "sliding_window": "window_size",
    "kv_source_layer_ids": "kv_source_layers",
    "index_source_layer_ids": "index_source_layers",
    "candidate_source_layer_id": "candidate_source_layer",
    "engram_pad_token_id": "engram_pad_id",
    "num_nextn_predict_layers": "n_mtp_layers",
    "dspark_num_experts_per_tok": "dspark_n_activated_experts",
}

VISION_FLAT_NAMES = {
    "num_hidden_layers": "vision_n_layers",
    "hidden_size": "vision_dim",
    "num_attention_heads": "vision_n_heads",
    "intermediate_size": "vision_inter_dim",
    "patch_size": "vision_patch_size",
    "downsample_ratio": "vision_downsample_ratio",
}


def released(**text: Any) -> dict[str, Any]:
    """A copy of the released configuration with fields of ``text_config`` replaced."""
    config = copy.deepcopy(RELEASED)
    config["text_config"].update(text)
    return config


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """The same configuration in the field names of the release's ``inference/config.json``."""
    text = dict(config["text_config"])
    rope = text.pop("rope_scaling")
    dropped = ("model_type", "num_key_value_heads", "hidden_act", "attention_bias", "attention_dropout", "topk_method")
    names = {name: FLAT_NAMES.get(name, name) for name in text if name not in dropped}
    out = {names[name]: text[name] for name in names}
    out |= {"rope_factor": rope["factor"], "original_seq_len": rope["original_max_position_embeddings"]}
    out |= {"beta_fast": rope["beta_fast"], "beta_slow": rope["beta_slow"], "dtype": "fp8", "expert_dtype": "fp4"}
    out |= {name: config[name] for name in ("image_token_id",)}
    if config.get("vision_config"):
        out |= {flat: config["vision_config"][name] for name, flat in VISION_FLAT_NAMES.items()}
    return out
