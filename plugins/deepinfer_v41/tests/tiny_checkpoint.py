"""A writer of tiny random checkpoints in the released layout, with the real quantisers (spec/model.md 1.3, 2.0).

``write_tiny_checkpoint(path)`` writes ``config.json`` and ``model.safetensors`` and returns the configuration.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from deepinfer_v41.config import V41Config
from deepinfer_v41.weights.table import Role, TensorSpec, tensor_table

TINY: dict[str, Any] = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "image_token_id": 510,
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [32, 32],
        "scale_fmt": "ue8m0",
        "expert_dtype": "fp4",
    },
    "text_config": {
        "model_type": "deepseek_v41_text",
        "vocab_size": 512,
        "hidden_size": 128,
        "moe_intermediate_size": 64,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "qk_rope_head_dim": 16,
        "q_lora_rank": 64,
        "o_lora_rank": 32,
        "o_groups": 2,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-20,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 64,
        },
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "sliding_window": 16,
        "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0, 0],
        "kv_source_layer_ids": [2, 4, 6],
        "index_source_layer_ids": [2, 4, 6, 8, 10],
        "index_n_heads": 4,
        "index_head_dim": 32,
        "index_topk": 16,
        "candidate_source_layer_id": 6,
        "candidate_topk_blocks": 4,
        "candidate_block_size": 8,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "engram_layer_ids": [1, 4],
        "engram_num_embeddings": [1362, 1552],
        "engram_max_ngram_size": 4,
        "engram_vocab_size": 200,
        "engram_n_heads": 2,
        "engram_head_dim": 32,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": 512,
        "engram_token_map": "identity",
        "num_nextn_predict_layers": 3,
        "dspark_block_size": 5,
        "dspark_noise_token_id": 511,
        "dspark_target_layer_ids": [9, 10, 11],
        "dspark_markov_rank": 32,
        "dspark_n_routed_experts": 4,
        "dspark_num_experts_per_tok": 2,
    },
}

VISION = {
    "model_type": "deepseek_v41_vision",
    "num_hidden_layers": 0,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "patch_size": 14,
    "downsample_ratio": 3,
}


def tiny_config(overrides: Mapping[str, Any] | None = None, *, vision: bool = False) -> dict[str, Any]:
    """The ``tiny`` configuration. Override keys are fields of ``text_config``, or of the root where they stand there.

    An override of None removes the field.
    """
    config = copy.deepcopy(TINY)
    if vision:
        config["vision_config"] = dict(VISION)
    for name, value in (overrides or {}).items():
        part = config if name in config or name == "vision_config" else config["text_config"]
        if value is None:
            part.pop(name, None)
        else:
            part[name] = value
    return config


def write_tiny_checkpoint(
    path: Path | str, *, seed: int = 0, overrides: Mapping[str, Any] | None = None, vision: bool = False
) -> dict[str, Any]:
    """Write a random checkpoint into directory ``path`` (made if absent) and return its ``config.json`` as a dict.

    The same seed and configuration give the same bytes. ``vision`` adds a ``vision_config`` of 0 layers, and with
    it the ``bias_vl`` tensors. ``overrides={"quantization_config": None}`` writes BF16 weights without scales.
    """
    config = tiny_config(overrides, vision=vision)
    tensors = random_tensors(V41Config.from_dict(config), seed=seed)
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    save_file(tensors, directory / "model.safetensors")
    return config


def random_tensors(config: V41Config, *, seed: int = 0) -> dict[str, torch.Tensor]:
    """Checkpoint tensors of random values: dense weights N(0, 1/in), the rest as spec/model.md 1.3 says."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, spec in tensor_table(config).items():
        if spec.role.is_scale:
            continue
        values = _random_values(name, spec, config, generator)
        if spec.role in (Role.PLAIN, Role.UNQUANTIZED):
            tensors[name] = values.to(torch.bfloat16 if spec.dtype == "BF16" else torch.float32)
            continue
        quantize = {Role.BLOCK_FP8: quantize_block_fp8, Role.ROWS_FP8: quantize_rows_fp8, Role.MXFP4: quantize_mxfp4}
        data, scale = quantize[spec.role](values)
        tensors[name] = data
        tensors[name.removesuffix("weight") + "scale"] = scale
    return tensors


def _random_values(name: str, spec: TensorSpec, c: V41Config, generator: torch.Generator) -> torch.Tensor:
    shape = spec.logical_shape
    last = name.rsplit(".", 1)[-1]
    if last in ("hc_attn_base", "hc_ffn_base"):
        return _hyper_connection_base(c, name)
    if last in ("hc_attn_scale", "hc_ffn_scale"):
        return torch.ones(shape)
    if last == "attn_sink":
        return torch.zeros(shape)
    if last in ("q_weight", "k_weight") or "norm" in name:
        return torch.ones(shape)
    values = torch.randn(shape, generator=generator)
    if last in ("bias", "bias_vl") or name.startswith("image_"):
        return values * 0.05
    # Rows of a lookup are used as they are: unit width for embeddings, 1/sqrt(width) for the Engram and Markov rows.
    return values if name == "embed.weight" else values / math.sqrt(shape[-1])


def _hyper_connection_base(c: V41Config, name: str) -> torch.Tensor:
    """Stream ``layer mod C`` in, itself out: pre -3 but +3 there, post 0, comb +3 on the diagonal and -3 off it."""
    part, index = name.split(".")[:2]
    layer = int(index) + (c.num_hidden_layers if part == "mtp" else 0)
    pre = torch.full((c.hc_mult,), -3.0)
    pre[layer % c.hc_mult] = 3.0
    comb = 6.0 * torch.eye(c.hc_mult) - 3.0
    return torch.cat([pre, torch.zeros(c.hc_mult), comb.flatten()])


# --- quantisers (spec/model.md 2.0): scale = smallest power of two that covers amax; codes to nearest even


def quantize_block_fp8(values: torch.Tensor, block: tuple[int, int] = (32, 32)) -> tuple[torch.Tensor, torch.Tensor]:
    """f32 ``[o, i]`` -> E4M3 ``[o, i]`` and E8M0 ``[ceil(o/b0), ceil(i/b1)]``."""
    rows, columns = values.shape
    grid = (-(-rows // block[0]), -(-columns // block[1]))
    padded = torch.zeros(grid[0] * block[0], grid[1] * block[1])
    padded[:rows, :columns] = values
    tiles = padded.view(grid[0], block[0], grid[1], block[1])
    exponent = _ceil_exponent(tiles.abs().amax(dim=(1, 3)).clamp_min(1e-4) / 448.0)
    scaled = tiles * _power_of_two(-exponent)[:, None, :, None]
    data = scaled.clamp(-448.0, 448.0).view_as(padded)[:rows, :columns]
    return data.contiguous().to(torch.float8_e4m3fn), _e8m0(exponent)


def quantize_rows_fp8(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """f32 ``[rows, width]`` -> E4M3 and one E8M0 scale per row and 32 columns."""
    return quantize_block_fp8(values, (1, 32))


def quantize_mxfp4(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """f32 ``[o, i]`` -> packed E2M1 int8 ``[o, i/2]``, low nibble the even column, and E8M0 ``[o, i/32]``."""
    rows, columns = values.shape
    groups = values.view(rows, columns // 32, 32)
    exponent = _ceil_exponent(groups.abs().amax(dim=2).clamp_min(6 * 2.0**-126) / 6.0)
    scaled = (groups * _power_of_two(-exponent)[..., None]).view(rows, columns)
    # Midpoints between neighbours; a tie goes to the even code, so odd codes start just above their lower midpoint.
    magnitude = scaled.abs()
    codes = torch.zeros_like(magnitude, dtype=torch.uint8)
    for code, midpoint in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0), start=1):
        reached = magnitude >= midpoint if code % 2 == 0 else magnitude > midpoint
        codes[reached] = code
    codes |= torch.signbit(scaled).to(torch.uint8) << 3
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return packed.contiguous().view(torch.int8), _e8m0(exponent)


def _ceil_exponent(ratio: torch.Tensor) -> torch.Tensor:
    """ceil(log2(ratio)), exact on the bits of a positive normal f32."""
    bits = ratio.float().contiguous().view(torch.int32)
    return ((bits - 1) >> 23) + 1 - 127


def _e8m0(exponent: torch.Tensor) -> torch.Tensor:
    return (exponent + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    return torch.ldexp(torch.ones(exponent.shape), exponent)
