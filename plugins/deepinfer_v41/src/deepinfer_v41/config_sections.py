"""The parts of a configuration file: nested and flat layout, architecture names, weight formats, absent features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from deepinfer_v41.config_fields import MISSING, Problem

ARCHITECTURE: Final = "DeepseekV41ForCausalLM"
MODEL_TYPE: Final = "deepseek_v41"

_QUANTIZATION: Mapping[str, object] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}
_UNQUANTIZED_REMEDY = (
    "use the released formats (fp8, dynamic, [32, 32], ue8m0, fp4), or leave quantization_config out for "
    "unquantised weights (BF16, F16 or F32)"
)

_NO_DRAFT: Mapping[str, object] = {
    "dspark_block_size": 1,
    "dspark_noise_token_id": 0,
    "dspark_target_layer_ids": [],
    "dspark_markov_rank": 1,
    "dspark_n_routed_experts": 1,
    "dspark_num_experts_per_tok": 1,
}
_NO_ENGRAM: Mapping[str, object] = {
    "engram_num_embeddings": [],
    "engram_max_ngram_size": 2,
    "engram_vocab_size": 2,
    "engram_n_heads": 1,
    "engram_head_dim": 32,
    "engram_pad_token_id": 0,
    "engram_compressed_vocab_size": 1,
}


def find_sections(config: Mapping[str, Any], flat: bool, problems: list[Problem]) -> dict[str, Mapping[str, Any]]:
    """Section name (root, text, rope, ids, vision) -> the mapping its fields are read from."""
    text = config if flat else config["text_config"]
    if not isinstance(text, Mapping):
        problems.append(Problem("text_config", text, "must be an object", "correct text_config in config.json"))
        text = {}
    rope: object = config if flat and "rope_scaling" not in text else text.get("rope_scaling", MISSING)
    if not isinstance(rope, Mapping):
        rule = "must be an object with rope_type, factor, beta_fast, beta_slow, original_max_position_embeddings"
        problems.append(Problem("rope_scaling", rope, rule, "add rope_scaling to text_config in config.json"))
        rope = {}
    vision: object = config.get("vision_config")
    if vision is None and flat:
        vision = config
    elif vision is not None and not isinstance(vision, Mapping):
        rule = "must be an object or null"
        problems.append(Problem("vision_config", vision, rule, "correct vision_config in config.json"))
        vision = {}
    # Token ids stand at the root, and again in text_config in some exports; the root leads.
    ids = {
        key: part[key]
        for part in (text, config)
        for key in ("bos_token_id", "eos_token_id", "pad_token_id")
        if key in part
    }
    return {"root": config, "text": text, "rope": rope, "ids": ids, "vision": vision or {}}


def check_names(config: Mapping[str, Any], flat: bool, problems: list[Problem]) -> None:
    """The architecture must be this one. A flat file may leave the names out, and has its own meaning of ``dtype``."""
    expected: dict[str, object] = {"architectures": [ARCHITECTURE], "model_type": MODEL_TYPE}
    if not flat:
        expected["dtype"] = "bfloat16"
    for name, value in expected.items():
        found = config.get(name, config.get("torch_dtype", MISSING) if name == "dtype" else MISSING)
        if found != value and not (flat and found is MISSING):
            remedy = "use a DeepSeek-V4.1 checkpoint, or the plugin of this model's architecture"
            problems.append(Problem(name, found, f"must be {value!r}", remedy))


def read_quantization(config: Mapping[str, Any], flat: bool, problems: list[Problem]) -> bool:
    """Whether the weights are in the released formats. Absent (or null) means unquantised weights.

    A flat file has no ``quantization_config``; its ``dtype`` and ``expert_dtype`` say the same, and default to the
    released formats, as the release's own code does.
    """
    section = config.get("quantization_config")
    if section is None and flat:
        dtype = config.get("dtype", "fp8")
        pair = (dtype, config.get("expert_dtype", "fp4" if dtype == "fp8" else None))
        if pair == ("fp8", "fp4"):
            return True
        if pair[0] not in ("bf16", "bfloat16") or pair[1] not in (None, "bf16"):
            rule = "must be 'fp8' with expert_dtype 'fp4', or 'bf16' with expert_dtype null"
            problems.append(Problem("dtype, expert_dtype", pair, rule, _UNQUANTIZED_REMEDY))
        return False
    if section is None:
        return False
    if not isinstance(section, Mapping):
        problems.append(Problem("quantization_config", section, "must be an object or null", _UNQUANTIZED_REMEDY))
        return False
    for name, value in _QUANTIZATION.items():
        found = section.get(name, MISSING)
        if found != value:
            label = f"quantization_config.{name}"
            problems.append(Problem(label, found, f"must be {value!r}", _UNQUANTIZED_REMEDY))
    return True


def fill_absent_parts(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fill in the fields of a part that the model does not have (Engram, draft head), so that they may be left out."""
    filled: dict[str, Any] = {}
    if text.get("num_nextn_predict_layers", text.get("n_mtp_layers")) == 0:
        filled |= _NO_DRAFT
    if text.get("engram_layer_ids") == []:
        filled |= _NO_ENGRAM
    return {**filled, **text}
