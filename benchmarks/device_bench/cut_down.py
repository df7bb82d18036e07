"""The released model with fewer layers, every other size as it is, and random weights in place of a checkpoint."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from deepinfer_v41.primes import engram_primes

ENGRAM_ROWS = 100_000
"""Start of the search for the primes of an Engram table; 16,000,000 in the release, whose tables no device holds."""
LEAST_LAYERS = 6
SWA_LAYERS = 2
REINDEX_EVERY = 4
DRAFT_TARGETS = 3
"""The draft head reads so many last layers, all of them in the second half."""

RELEASED: dict[str, Any] = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "image_token_id": None,
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [32, 32],
        "scale_fmt": "ue8m0",
        "expert_dtype": "fp4",
    },
    "text_config": {
        "model_type": "deepseek_v41_text",
        "vocab_size": 129280,
        "hidden_size": 5120,
        "moe_intermediate_size": 2304,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1280,
        "o_lora_rank": 1024,
        "o_groups": 8,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-20,
        "tie_word_embeddings": False,
        "max_position_embeddings": 1048576,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        },
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "sliding_window": 128,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 512,
        "candidate_topk_blocks": 2048,
        "candidate_block_size": 8,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "engram_max_ngram_size": 4,
        "engram_n_heads": 8,
        "engram_head_dim": 256,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": 129280,
        "engram_token_map": "identity",
        "num_nextn_predict_layers": 3,
        "dspark_block_size": 5,
        "dspark_noise_token_id": 128799,
        "dspark_markov_rank": 256,
        "dspark_n_routed_experts": 128,
        "dspark_num_experts_per_tok": 3,
    },
}


def cut_down(layers: int, **text: Any) -> dict[str, Any]:
    """``config.json`` with ``layers`` layers: two with windows only, then half with ratio 2 and half with ratio 1.

    Each half begins with a layer that owns entries; in the second, every fourth one chooses among candidates anew, as
    in the release. One layer has an Engram table.

    :param text: Fields of ``text_config`` to replace, for tests with small sizes.
    """
    if layers < LEAST_LAYERS:
        raise ValueError(f"{layers} layers: at least {LEAST_LAYERS} hold one of each kind")
    config = copy.deepcopy(RELEASED)
    fields: dict[str, Any] = config["text_config"]
    boundary = min(SWA_LAYERS + (layers - SWA_LAYERS) // 2, layers - DRAFT_TARGETS)
    reindex = list(range(boundary + min(REINDEX_EVERY, layers - boundary - 1), layers, REINDEX_EVERY))
    fields |= {
        "num_hidden_layers": layers,
        "compress_ratios": [0] * SWA_LAYERS + [2] * (boundary - SWA_LAYERS) + [1] * (layers - boundary) + [0] * 3,
        "kv_source_layer_ids": [SWA_LAYERS, boundary],
        "index_source_layer_ids": [SWA_LAYERS, boundary, *reindex],
        "candidate_source_layer_id": boundary,
        "engram_layer_ids": [1],
        "engram_vocab_size": ENGRAM_ROWS,
        "dspark_target_layer_ids": list(range(layers - DRAFT_TARGETS, layers)),
    }
    fields |= text
    columns = (fields["engram_max_ngram_size"] - 1) * fields["engram_n_heads"]
    primes = engram_primes(fields["engram_vocab_size"], 1, columns)
    fields["engram_num_embeddings"] = [sum(primes[0])]
    return config


def write_model(folder: Path, config: dict[str, Any]) -> Path:
    """A model directory without weights: ``config.json``, and a tokenizer that has a word for each id."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    words = {f"t{i}": i for i in range(config["text_config"]["vocab_size"])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}), "utf-8")
    return folder
