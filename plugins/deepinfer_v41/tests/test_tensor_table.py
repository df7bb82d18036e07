"""The table of checkpoint tensors (spec/model.md 3)."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import as_file, files

import attrs
import torch
from released_config import RELEASED, released
from safetensors import safe_open
from tiny_checkpoint import tiny_config

from deepinfer_v41.config import V41Config
from deepinfer_v41.weights.table import Role, tensor_table

TORCH_DTYPES = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
}


def test_released_table_has_the_published_totals_on_the_meta_device() -> None:
    table = tensor_table(V41Config.from_dict(RELEASED))
    n_bytes = 0
    for spec in table.values():
        tensor = torch.empty(spec.shape, dtype=TORCH_DTYPES[spec.dtype], device="meta")
        n_bytes += tensor.numel() * tensor.element_size()
    assert len(table) == 96_085
    assert n_bytes == 510_286_023_000
    assert n_bytes == sum(spec.nbytes for spec in table.values())
    assert Counter(spec.dtype for spec in table.values()) == {
        "I8": 47_232,
        "F8_E8M0": 47_589,
        "F8_E4M3": 357,
        "BF16": 520,
        "F32": 387,
    }


def test_released_shapes_are_those_of_the_layout() -> None:
    table = tensor_table(V41Config.from_dict(RELEASED))
    expected = {
        "layers.0.hc_attn_fn": (24, 20480),
        "layers.0.attn.wq_b.weight": (32768, 1280),
        "layers.0.attn.wq_b.scale": (1024, 40),
        "layers.0.attn.wo_a.weight": (8192, 4096),
        "layers.39.ffn.experts.383.w2.weight": (5120, 1152),
        "layers.39.ffn.experts.383.w2.scale": (5120, 72),
        "layers.1.engram.embed.weight": (384006168, 256),
        "layers.1.engram.embed.scale": (384006168, 8),
        "layers.14.engram.wkv.weight": (25600, 6144),
        "layers.20.attn.indexer.wk.weight": (128, 512),
        "layers.24.attn.indexer.wq_b.weight": (4096, 1280),
        "mtp.0.main_proj.weight": (5120, 15360),
        "mtp.2.confidence_head.proj.weight": (1, 5376),
        "vision.patch_embed.proj.weight": (1024, 588),
        "aligner.w1.weight": (5120, 9216),
    }
    assert {name: table[name].shape for name in expected} == expected


def test_compressor_gate_and_index_keys_exist_only_where_the_layout_says() -> None:
    names = tensor_table(V41Config.from_dict(RELEASED))

    def layers_with(suffix: str) -> list[int]:
        return [layer for layer in range(40) if f"layers.{layer}.attn.{suffix}" in names]

    assert layers_with("compressor.wgate.weight") == [2, 8, 14]
    assert layers_with("compressor.wkv.weight") == [2, 8, 14, 20]
    assert layers_with("indexer.wk.weight") == [2, 8, 14, 20]
    assert layers_with("indexer.wq_b.weight") == [2, 8, 14, 20, 24, 28, 32, 36]


def test_router_bias_for_images_exists_exactly_with_a_vision_section() -> None:
    without = tensor_table(V41Config.from_dict(tiny_config()))
    with_empty = tensor_table(V41Config.from_dict(tiny_config(vision=True)))
    added = set(with_empty) - set(without)
    assert added == {
        f"{p}.ffn.gate.bias_vl" for p in [f"layers.{i}" for i in range(12)] + [f"mtp.{i}" for i in range(3)]
    }


def test_shipped_checkpoint_has_exactly_the_tensors_of_the_table() -> None:
    directory = files("deepinfer_v41") / "checkpoints" / "v41-tiny"
    config = V41Config.from_dict(json.loads((directory / "config.json").read_text("utf-8")))
    table = {name: (spec.dtype, spec.shape) for name, spec in tensor_table(config).items()}
    with as_file(directory / "model.safetensors") as path, safe_open(path, "pt") as shard:
        slices = {name: shard.get_slice(name) for name in shard.keys()}  # noqa: SIM118 - a safetensors handle
        stored = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    assert stored == table


def test_unquantized_table_has_the_same_names_without_scales() -> None:
    quantized = tensor_table(V41Config.from_dict(RELEASED))
    config = attrs.evolve(V41Config.from_dict(RELEASED), quantized=False)
    plain = tensor_table(config)
    assert list(plain) == [name for name, spec in quantized.items() if not spec.role.is_scale]
    expert = plain["layers.0.ffn.experts.0.w1.weight"]
    assert (expert.shape, expert.role, expert.dtypes) == ((2304, 5120), Role.UNQUANTIZED, ("BF16", "F16", "F32"))


def test_draft_tensors_name_their_stage() -> None:
    table = tensor_table(V41Config.from_dict(released()))
    assert {name.split(".")[1]: spec.stage for name, spec in table.items() if name.startswith("mtp.")} == {
        "0": 0,
        "1": 1,
        "2": 2,
    }
    assert all(spec.stage is None for name, spec in table.items() if not name.startswith("mtp."))
